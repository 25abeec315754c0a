"""GQL: the query language of the API, turned into Query messages.

The grammar is that of the GQL reference for the v1 API, with `!=`, `NOT IN`, `OR`, parentheses,
`ARRAY(…)` and aggregations:

    SELECT * | names | DISTINCT names | DISTINCT ON (names) * | DISTINCT ON (names) names
    [FROM kind] [WHERE conditions] [ORDER BY name [ASC | DESC], …]
    [LIMIT n | LIMIT FIRST(n, n)] [OFFSET n [+ n]]

    AGGREGATE aggregation [AS name], … OVER (query)
    SELECT aggregation [AS name], … [FROM kind] [WHERE conditions]

Keywords are recognised by their position, in upper or lower case. A name that looks like a keyword
needs no backquotes in a position where only a name is possible.
"""

from collections.abc import Callable

from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.gql_lexer import Sort, gql_error
from userlock_emulator.datastore.gql_values import Bindings, blob, date, integer, new_key
from userlock_emulator.datastore.gql_words import Words
from userlock_emulator.datastore.protos import (
    AggregationQuery,
    CompositeFilter,
    Filter,
    Message,
    PropertyFilter,
    PropertyOrder,
    Query,
    QueryPb,
    Value,
    ValuePb,
)

COMPARATORS = {
    "=": PropertyFilter.EQUAL,
    "!=": PropertyFilter.NOT_EQUAL,
    "<": PropertyFilter.LESS_THAN,
    "<=": PropertyFilter.LESS_THAN_OR_EQUAL,
    ">": PropertyFilter.GREATER_THAN,
    ">=": PropertyFilter.GREATER_THAN_OR_EQUAL,
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_AGGREGATORS = ("COUNT", "COUNT_UP_TO", "SUM", "AVG")
_SYNTHETIC = ("KEY", "BLOB", "DATETIME", "ARRAY")
# Messages are nested a hundred levels deep at most, and each condition takes a few.
_MAX_DEPTH = 40
_LITERALS = (Sort.INTEGER, Sort.DOUBLE, Sort.STRING)


def parse_query(gql: Message, partition: Partition) -> QueryPb:
    """Return the Query of a GqlQuery.

    Args:
        partition: the partition of keys in the query that name none.

    Raises:
        DatastoreError: INVALID_ARGUMENT.
    """
    return _parse(gql, partition, _Parser.query)


def parse_aggregation_query(gql: Message, partition: Partition) -> Message:
    """Return the AggregationQuery of a GqlQuery; otherwise as `parse_query`."""
    return _parse(gql, partition, _Parser.aggregation_query)


def _parse(gql: Message, partition: Partition, rule: "Callable[[_Parser], Message]") -> Message:
    bindings = Bindings(gql)
    parser = _Parser(gql, bindings, partition)
    parsed = rule(parser)
    parser.end()
    bindings.check_used()
    return parsed


class _Parser(Words):
    """Recursive descent: one method for each rule of the grammar."""

    def __init__(self, gql: Message, bindings: Bindings, partition: Partition) -> None:
        super().__init__(gql.query_string)
        self._literals = gql.allow_literals
        self._bindings = bindings
        self._partition = partition
        self._depth = 0

    # --- queries --------------------------------------------------------------------------

    def query(self) -> QueryPb:
        self.keyword("SELECT")
        if self.at_function(*_AGGREGATORS):
            raise self.unexpected("a name, as RunQuery takes no aggregations,")
        query = Query()
        self._selection(query)
        self._source(query)
        self._clauses(query)
        return query

    def aggregation_query(self) -> Message:
        message = AggregationQuery()
        if self.word("AGGREGATE"):
            self.several(lambda: self._aggregation(message.aggregations.add()))
            self.keyword("OVER")
            self.symbol("(")
            message.nested_query.CopyFrom(self.query())
            self.symbol(")")
            return message
        self.keyword("SELECT")
        self.several(lambda: self._aggregation(message.aggregations.add()))
        message.nested_query.SetInParent()
        self._source(message.nested_query)
        return message

    def end(self) -> None:
        if self.next.sort is not Sort.END:
            raise self.unexpected("the end of the query")

    def _selection(self, query: QueryPb) -> None:
        distinct: list[str] | None = None
        if self.peek("DISTINCT") and not self.follows(".", ","):
            self.advance()
            distinct = []
            if self.peek("ON") and self.follows("("):
                self.advance()
                distinct = self.parenthesized(lambda: self.several(self.dotted_name))
        if self.accept("*"):
            if distinct == []:
                raise self.unexpected("names, which DISTINCT needs,")
            names = []
        else:
            names = self.several(self.dotted_name)
            distinct = names if distinct == [] else distinct
        for name in names:
            query.projection.add().property.name = name
        for name in distinct or ():
            query.distinct_on.add().name = name

    def _source(self, query: QueryPb) -> None:
        if self.word("FROM"):
            query.kind.add(name=self.name())
        if self.word("WHERE"):
            query.filter.CopyFrom(self._alternatives())

    def _clauses(self, query: QueryPb) -> None:
        if self.word("ORDER"):
            self.keyword("BY")
            self.several(lambda: self._order(query.order.add()))
        if self.word("LIMIT"):
            self._limit(query)
        if self.word("OFFSET"):
            self._offset(query)

    def _order(self, order: Message) -> None:
        order.property.name = self.dotted_name()
        order.direction = PropertyOrder.ASCENDING
        if self.word("DESC"):
            order.direction = PropertyOrder.DESCENDING
        else:
            self.word("ASC")

    def _limit(self, query: QueryPb) -> None:
        if self.at_function("FIRST"):
            self.advance()
            ends = self.parenthesized(lambda: self.several(self._result_position))
            if [isinstance(end, int) for end in ends] not in ([True, False], [False, True]):
                raise gql_error("FIRST takes a number and a cursor.")
        else:
            ends = [self._result_position()]
        for end in ends:
            if isinstance(end, int):
                query.limit.value = end
            else:
                query.end_cursor = end

    def _offset(self, query: QueryPb) -> None:
        start = self._result_position()
        if isinstance(start, int):
            query.offset = start
            return
        query.start_cursor = start
        further: int | bytes = 0
        if self.accept("+") or (self.next.sort is Sort.INTEGER and self.next.text.startswith("+")):
            further = self._result_position()
        if not isinstance(further, int):
            raise gql_error("the addend of an offset must be a number.")
        query.offset = further

    def _result_position(self) -> int | bytes:
        """Parse a number of results, or a cursor."""
        if self.next.sort is Sort.BINDING:
            parameter = self._bindings.find(self.advance().text)
            if parameter.WhichOneof("parameter_type") == "cursor":
                return bytes(parameter.cursor)
            value = parameter.value
        else:
            value = self._value()
        if value.WhichOneof("value_type") != "integer_value":
            raise gql_error("LIMIT and OFFSET take integers and cursors.")
        if not 0 <= value.integer_value < 2**31:
            raise gql_error(f"{value.integer_value} is out of range for LIMIT and OFFSET.")
        return int(value.integer_value)

    # --- aggregations ---------------------------------------------------------------------

    def _aggregation(self, aggregation: Message) -> None:
        if not self.at_function(*_AGGREGATORS):
            raise self.unexpected("COUNT(*), COUNT_UP_TO(…), SUM(…) or AVG(…)")
        aggregator = self.advance().text.upper()
        self.symbol("(")
        if aggregator == "COUNT":
            self.symbol("*")
            aggregation.count.SetInParent()
        elif aggregator == "COUNT_UP_TO":
            up_to = self._result_position()
            if not isinstance(up_to, int):
                raise gql_error("COUNT_UP_TO takes an integer.")
            aggregation.count.up_to.value = up_to
        else:
            getattr(aggregation, aggregator.lower()).property.name = self.dotted_name()
        self.symbol(")")
        if self.word("AS"):
            aggregation.alias = self.name()

    # --- conditions -----------------------------------------------------------------------

    def _alternatives(self) -> Message:
        parts = [self._conjunction()]
        while self.word("OR"):
            parts.append(self._conjunction())
        return _composite(CompositeFilter.OR, parts)

    def _conjunction(self) -> Message:
        parts = [self._condition()]
        while self.word("AND"):
            parts.append(self._condition())
        return _composite(CompositeFilter.AND, parts)

    def _condition(self) -> Message:
        if self.next.text == "(" and self.next.sort is Sort.SYMBOL:
            if self._depth == _MAX_DEPTH:
                raise self.unexpected(f"at most {_MAX_DEPTH} parentheses within each other")
            self._depth += 1
            parts = self.parenthesized(self._alternatives)
            self._depth -= 1
            return parts
        leaf = Filter()
        if self._at_value():
            self._backward(leaf.property_filter)
        else:
            self._forward(leaf.property_filter)
        return leaf

    def _forward(self, leaf: Message) -> None:
        leaf.property.name = self.dotted_name()
        if self.word("IS"):
            self.keyword("NULL")
            leaf.op = PropertyFilter.EQUAL
            leaf.value.null_value = 0
            return
        if self.word("CONTAINS"):
            leaf.op = PropertyFilter.EQUAL
        elif self.word("IN"):
            leaf.op = PropertyFilter.IN
        elif self.word("NOT"):
            self.keyword("IN")
            leaf.op = PropertyFilter.NOT_IN
        elif self.word("HAS"):
            self.keyword("ANCESTOR")
            leaf.op = PropertyFilter.HAS_ANCESTOR
        else:
            leaf.op = COMPARATORS[self._comparator()]
        leaf.value.CopyFrom(self._value())

    def _backward(self, leaf: Message) -> None:
        leaf.value.CopyFrom(self._value())
        if self.word("IN"):
            # With the operands swapped it says that the property has the value.
            leaf.op = PropertyFilter.EQUAL
        elif self.word("HAS"):
            self.keyword("DESCENDANT")
            leaf.op = PropertyFilter.HAS_ANCESTOR
        else:
            comparator = self._comparator()
            leaf.op = COMPARATORS[_MIRRORED.get(comparator, comparator)]
        leaf.property.name = self.dotted_name()

    def _comparator(self) -> str:
        if self.next.sort is not Sort.SYMBOL or self.next.text not in COMPARATORS:
            raise self.unexpected("a comparison")
        return self.advance().text

    # --- values ---------------------------------------------------------------------------

    def _at_value(self) -> bool:
        return (
            self.next.sort in (*_LITERALS, Sort.BINDING)
            or self.peek("NULL", "TRUE", "FALSE")
            or self.at_function(*_SYNTHETIC)
        )

    def _value(self) -> ValuePb:
        token = self.next
        if token.sort is Sort.BINDING:
            parameter = self._bindings.find(self.advance().text)
            if parameter.WhichOneof("parameter_type") != "value":
                raise gql_error(f"a cursor is bound to @{token.text}, where a value belongs.")
            return parameter.value
        if not self._at_value():
            raise self.unexpected("a value")
        if self.at_function("ARRAY"):
            self.advance()
            elements = self.parenthesized(lambda: self.several(self._element))
            array = Value()
            array.array_value.values.extend(elements)
            return array
        if not self._literals:
            raise gql_error(f"disallowed literal: {self.text[token.start : token.end]}.")
        self.advance()
        if token.sort is Sort.INTEGER:
            return Value(integer_value=integer(token.text))
        if token.sort is Sort.DOUBLE:
            return Value(double_value=float(token.text))
        if token.sort is Sort.STRING:
            return Value(string_value=token.text)
        return self._named_value(token.text.upper())

    def _element(self) -> ValuePb:
        if self.at_function("ARRAY"):
            raise self.unexpected("a value that is not an array")
        return self._value()

    def _named_value(self, name: str) -> ValuePb:
        if name == "NULL":
            return Value(null_value=0)
        if name in ("TRUE", "FALSE"):
            return Value(boolean_value=name == "TRUE")
        if name == "KEY":
            return self.parenthesized(self._key)
        text = self.parenthesized(self._string)
        return blob(text) if name == "BLOB" else date(text)

    def _key(self) -> ValuePb:
        project = self._key_dimension("PROJECT", "DATASET")
        namespace = self._key_dimension("NAMESPACE")
        key = new_key(self._partition, project, namespace)
        while True:
            element = key.path.add(kind=self.name())
            self.symbol(",")
            if self.next.sort is Sort.INTEGER:
                element.id = integer(self.advance().text)
            else:
                element.name = self._string()
            if not self.accept(","):
                return Value(key_value=key)

    def _key_dimension(self, *names: str) -> str | None:
        if not self.at_function(*names):
            return None
        self.advance()
        text = self.parenthesized(self._string)
        self.symbol(",")
        return text

    def _string(self) -> str:
        if self.next.sort is not Sort.STRING:
            raise self.unexpected("a string")
        return self.advance().text


def _composite(operator: int, parts: list[Message]) -> Message:
    if len(parts) == 1:
        return parts[0]
    message = Filter()
    message.composite_filter.op = operator
    message.composite_filter.filters.extend(parts)
    return message
