"""GQL: the grammar of the reference, and the resulting Query messages."""

from typing import Any

import pytest

from tests.unit.emulator.builders import PROJECT, Timestamp, entity, key, value
from tests.unit.emulator.subject import Subject, query, refused, where
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.errors import Code, DatastoreError
from userlock_emulator.datastore.gql import parse_aggregation_query, parse_query
from userlock_emulator.datastore.protos import (
    AggregationQuery,
    CompositeFilter,
    Filter,
    GqlQuery,
    Message,
    QueryPb,
)

PARTITION = Partition(PROJECT, "", "")
WHERE = "SELECT * FROM K WHERE "


def gql(text: str, *positional: Any, literals: bool = True, **named: Any) -> Message:
    """Return a GqlQuery; a value bound as a tuple is a cursor."""
    message = GqlQuery(query_string=text, allow_literals=literals)
    for parameter in positional:
        _bind(message.positional_bindings.add(), parameter)
    for name, parameter in named.items():
        _bind(message.named_bindings[name], parameter)
    return message


def _bind(site: Message, parameter: Any) -> None:
    if isinstance(parameter, tuple):
        (site.cursor,) = parameter
    else:
        site.value.CopyFrom(value(parameter))


def parse(text: str, *positional: Any, **named: Any) -> QueryPb:
    return parse_query(gql(text, *positional, **named), PARTITION)


def condition(name: str, op: str, operand: Any) -> Message:
    return where((name, op, operand)).composite_filter.filters[0]


def any_of(*parts: Message) -> Message:
    message = Filter()
    message.composite_filter.op = CompositeFilter.OR
    message.composite_filter.filters.extend(parts)
    return message


def distinct(message: QueryPb, *names: str) -> QueryPb:
    for name in names:
        message.distinct_on.add().name = name
    return message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT *", query(None)),
        ("select * from K", query()),
        ("SELECT * FROM `a``b\\``", query("a`b`")),
        ("SELECT __key__ FROM K", query(projection=("__key__",))),
        ("SELECT a, `b c`, d.e FROM K", query(projection=("a", "b c", "d.e"))),
        ("SELECT DISTINCT a, b FROM K", distinct(query(projection=("a", "b")), "a", "b")),
        ("SELECT DISTINCT ON (a) a, b FROM K", distinct(query(projection=("a", "b")), "a")),
        ("SELECT DISTINCT ON (a, b) * FROM K", distinct(query(), "a", "b")),
        ("SELECT * FROM K ORDER BY a, b DESC, c ASC", query(orders=("a", "-b", "c"))),
        ("SELECT * FROM K LIMIT 5 OFFSET 2", query(limit=5, offset=2)),
        ("SELECT order, key FROM select", query("select", projection=("order", "key"))),
    ],
)  # fmt: skip
def test_clauses(text: str, expected: QueryPb) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1", condition("a", "=", 1)),
        ("a.b.c != -1", condition("a.b.c", "!=", -1)),
        ("a <= .5e1", condition("a", "<=", 5.0)),
        ('a >= "it\'s"', condition("a", ">=", "it's")),
        ("a = 'it''s'", condition("a", "=", "it's")),
        ("a = '\\n\\t\\\\\\'\\0\"\"'", condition("a", "=", '\n\t\\\'\0""')),
        ("a IS NULL", condition("a", "=", None)),
        ("a CONTAINS 1", condition("a", "=", 1)),
        ("1 IN a", condition("a", "=", 1)),
        ("1 < a", condition("a", ">", 1)),
        ("KEY(P, 'x') HAS DESCENDANT __key__", condition("__key__", "ancestor", key("P", "x"))),
        ("a = KEY(P, 1, `C d`, 'x')", condition("a", "=", key("P", 1, "C d", "x"))),
        (
            "a = KEY(PROJECT('other'), NAMESPACE('n'), P, 1)",
            condition("a", "=", key("P", 1, project="other", namespace="n")),
        ),
        ("a = BLOB('_-8')", condition("a", "=", b"\xff\xef")),
        (
            "a = DATETIME('1970-01-01T01:00:01.25+01:00')",
            condition("a", "=", Timestamp(1_250_000)),
        ),
        ("((((a = 1)))) AND (((b = 2)))", where(("a", "=", 1), ("b", "=", 2))),
        (
            "(a = 1 OR b = 2) OR c = 3",
            any_of(where(("a", "=", 1), ("b", "=", 2), any_of=True), condition("c", "=", 3)),
        ),
    ],
)
def test_conditions(text: str, expected: Message) -> None:
    assert parse(WHERE + text).filter == expected


class TestBindings:
    def test_values(self) -> None:
        text = "SELECT * FROM K WHERE a = @1 AND b IN @list AND @2 > c AND d IN ARRAY(@1, @2)"
        bound = parse(text, 7, "x", literals=False, list=[1, 2], unused=3)
        assert bound.filter == where(
            ("a", "=", 7), ("b", "in", [1, 2]), ("c", "<", "x"), ("d", "in", [7, "x"])
        )

    def test_positions(self) -> None:
        text = "SELECT * FROM K LIMIT FIRST(@end, @most) OFFSET @start + @skip"
        bound = parse(text, literals=False, end=(b"e",), most=5, start=(b"s",), skip=2)
        assert bound == query(limit=5, end_cursor=b"e", start_cursor=b"s", offset=2)
        assert parse("SELECT * FROM K LIMIT @1 OFFSET @2", (b"e",), (b"s",)) == query(
            end_cursor=b"e", start_cursor=b"s"
        )
        assert parse("SELECT * FROM K OFFSET @1 +2", (b"s",)) == query(start_cursor=b"s", offset=2)

    @pytest.mark.parametrize(
        ("message", "text"),
        [
            (gql("SELECT * WHERE a = @1"), "no binding for the site @1"),
            (gql("SELECT * WHERE a = @0", 1), "no binding for the site @0"),
            (gql("SELECT * WHERE a = @x", y=1), "no binding for the site @x"),
            (gql("SELECT *", 1), "no site for the positional binding 1"),
            (gql("SELECT * WHERE a = @x", __x__=1), "not allowed"),
            (gql("SELECT * WHERE a = @1", (b"c",)), "where a value belongs"),
            (gql("SELECT * LIMIT @1", "x"), "integers and cursors"),
            (gql("SELECT * LIMIT FIRST(@1, @2)", 1, 2), "a number and a cursor"),
            (gql("SELECT * OFFSET @1 + @2", (b"c",), (b"d",)), "must be a number"),
        ],
    )
    def test_refused(self, message: Message, text: str) -> None:
        with refused(text):
            parse_query(message, PARTITION)


def test_literals_have_to_be_allowed() -> None:
    for text in (
        "a = 1", "a = 'x'", "a = 1.5", "a = TRUE", "a = NULL", "a = KEY(K, 1)",
        "a = BLOB('')", "a IN ARRAY(1)", "a IS NULL LIMIT 5",
    ):  # fmt: skip
        with pytest.raises(DatastoreError, match="disallowed literal"):
            parse(WHERE + text, literals=False)
        parse(WHERE + text)
    parse(WHERE + "a IS NULL", literals=False)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected SELECT instead of the end at line 1, column 1"),
        ("SELECT * FROM", "expected a name"),
        ("SELECT *\nFROM K WERE a = 1", 'instead of "WERE" at line 2, column 8'),
        ("SELECT * FROM K WHERE a", "expected a comparison"),
        ("SELECT * FROM K WHERE a = b", 'expected a value instead of "b"'),
        ("SELECT * FROM K WHERE (a = 1", r'expected "\)"'),
        ("SELECT * FROM K WHERE a = 1 b = 2", "expected the end"),
        ("SELECT * FROM K WHERE a IS 1", "expected NULL"),
        ("SELECT * FROM K WHERE a = KEY(K)", 'expected ","'),
        ("SELECT * FROM K WHERE a = BLOB('?')", "is not a blob"),
        ("SELECT * FROM K WHERE a = DATETIME('2020-13-01T00:00:00Z')", "is not a date"),
        ("SELECT * FROM K WHERE a = 'x", "lexical error at line 1, column 27"),
        (r"SELECT * FROM K WHERE a = '\x'", "unknown escape"),
        ("SELECT * FROM K LIMIT 'x'", "integers and cursors"),
        ("SELECT DISTINCT * FROM K", "which DISTINCT needs"),
        ("SELECT * WHERE a IN ARRAY(ARRAY(1))", "a value that is not an array"),
        ("SELECT * WHERE " + "(" * 1000 + "a = 1" + ")" * 1000, "40 parentheses"),
        ("SELECT COUNT(*) FROM K", "RunQuery takes no aggregations"),
        ("AGGREGATE COUNT(*) OVER (SELECT * FROM K)", "expected SELECT"),
    ],
)
def test_invalid_gql(text: str, complaint: str) -> None:
    with refused(f"GQL query error: .*{complaint}"):
        parse(text)


class TestAggregations:
    def test_over_a_query(self) -> None:
        text = "AGGREGATE COUNT(*), COUNT_UP_TO(7) AS few, SUM(a.b) AS s, AVG(n) OVER (%s)"
        nested = "SELECT * FROM K WHERE a = 1 LIMIT 3"
        expected = AggregationQuery(nested_query=parse(nested))
        add = expected.aggregations.add
        add().count.SetInParent()
        add(alias="few").count.up_to.value = 7
        add(alias="s").sum.property.name = "a.b"
        add().avg.property.name = "n"
        assert parse_aggregation_query(gql(text % nested), PARTITION) == expected
        short = gql("SELECT COUNT(*) AS few FROM K WHERE a = @1", 1, literals=False)
        parsed = parse_aggregation_query(short, PARTITION)
        assert parsed.nested_query == query(filters=condition("a", "=", 1))
        assert [each.alias for each in parsed.aggregations] == ["few"]

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("SELECT * FROM K", r"expected COUNT\(\*\)"),
            ("AGGREGATE MAX(a) OVER (SELECT * FROM K)", r"expected COUNT\(\*\)"),
            ("SELECT COUNT(*) FROM K LIMIT 5", "expected the end"),
            ("AGGREGATE COUNT_UP_TO('x') OVER (SELECT *)", "integers"),
        ],
    )
    def test_refused(self, text: str, complaint: str) -> None:
        with pytest.raises(DatastoreError, match=complaint):
            parse_aggregation_query(gql(text), PARTITION)


def test_running(engine: Subject) -> None:
    """The reply has the parsed form, to go on where a batch ended."""
    engine.put(*(entity(key("K", i, namespace="n"), n=i, odd=bool(i % 2)) for i in range(1, 6)))

    place = {"namespace_id": "n"}

    def run(text: str, *bound: Any) -> tuple[Message, list[int]]:
        response = engine.ask("RunQuery", gql_query=gql(text, *bound), partition_id=place)
        return response, [r.entity.key.path[0].id for r in response.batch.entity_results]

    text = "SELECT * FROM K WHERE n > 1 AND odd = TRUE ORDER BY n DESC"
    response, found = run(text)
    assert (found, response.query) == ([5, 3], parse(text))
    assert run("SELECT * FROM K WHERE __key__ = KEY(K, 1)")[1] == [1], "in the query's namespace"
    response, found = run("SELECT * FROM K LIMIT 2")
    assert run("SELECT * FROM K OFFSET @1", (response.batch.end_cursor,))[1] == [3, 4, 5]
    response, found = run("SELECT DISTINCT ON (odd) n FROM K ORDER BY odd, n DESC")
    assert found == [4, 5]
    assert all(set(result.entity.properties) == {"n"} for result in response.batch.entity_results)
    text = "AGGREGATE COUNT(*) AS c, SUM(n) AS s OVER (SELECT * FROM K WHERE odd = TRUE)"
    response = engine.ask("RunAggregationQuery", gql_query=gql(text), partition_id=place)
    (result,) = response.batch.aggregation_results
    assert dict(result.aggregate_properties) == {"c": value(3), "s": value(9)}
    assert response.query == parse_aggregation_query(gql(text), PARTITION)


@pytest.mark.parametrize("number", ["-" + "9" * 5000, "9" * 19, "\u0663"])
def test_numbers_out_of_range_anywhere(number: str) -> None:
    for text in (
        "SELECT * FROM K WHERE a = {}", "SELECT * FROM K WHERE a IN ARRAY({})",
        "SELECT * FROM K WHERE __key__ = KEY(K, {})", "SELECT * FROM K LIMIT {}",
        "SELECT * FROM K LIMIT FIRST({}, @1)", "SELECT * FROM K OFFSET {}",
        "SELECT * FROM K WHERE a = @{}", "SELECT COUNT_UP_TO({}) FROM K",
    ):  # fmt: skip
        parsed = parse_aggregation_query if "COUNT" in text else parse_query
        with pytest.raises(DatastoreError) as caught:
            parsed(gql(text.format(number)), PARTITION)
        assert caught.value.code is Code.INVALID_ARGUMENT
        assert len(caught.value.message) < 200
    for text in ("9223372036854775807", "-9223372036854775808", "0" * 5000 + "7"):
        parse(WHERE + "a = " + text)
