"""Random data and queries for the emulator, and an engine with a naive model of its data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.property.naive_datastore import KEY, Entities, NaiveFilter, NaiveQuery, Path
from tests.unit.emulator.builders import PROJECT, entity, key, value
from tests.unit.emulator.subject import query, where
from userlock_emulator.datastore.engine import Engine
from userlock_emulator.datastore.protos import CommitRequest, KeyPb, Message, RunQueryRequest
from userlock_emulator.datastore.storage import Storage

# Few values, so that ties, duplicates and matches are common.
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([0.0, -1.5, 2.0, float("nan"), float("inf")]),
    st.sampled_from(["", "a", "ab", "b", "\x00"]),
)
any_values = st.one_of(values, st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=5))
paths = st.one_of(
    st.tuples(st.just("K"), st.integers(1, 8)),
    st.tuples(st.just("K"), st.sampled_from(["x", "y"])),
    st.tuples(st.just("P"), st.integers(1, 2), st.just("K"), st.integers(1, 4)),
    st.tuples(st.just("J"), st.integers(1, 2)),
)
properties = st.dictionaries(
    st.sampled_from("abc"),
    st.one_of(
        values.map(lambda item: [item]),
        st.lists(values, min_size=2, max_size=3),
        st.lists(values, max_size=1),
        st.just("unindexed"),
    ),
    min_size=1,
)
# A step stores an entity, or removes it (None).
steps = st.lists(
    st.tuples(paths, st.one_of(properties, properties, st.none())), min_size=3, max_size=25
)
operators = st.sampled_from(["=", "=", "<", "<=", ">", ">=", "!="])
lists = st.sampled_from(["in", "not in"])
filters = st.one_of(
    st.builds(NaiveFilter, st.sampled_from("abc"), operators, values),
    st.builds(NaiveFilter, st.sampled_from("abc"), operators, values),
    st.builds(
        NaiveFilter,
        st.sampled_from("abc"),
        lists,
        st.lists(values, min_size=1, max_size=2).map(tuple),
    ),
)
key_filters = st.one_of(
    st.builds(NaiveFilter, st.just(KEY), operators, paths),
    st.builds(NaiveFilter, st.just(KEY), lists, st.lists(paths, min_size=1, max_size=2).map(tuple)),
)
any_filters = st.one_of(filters, filters, key_filters)
orders = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", KEY]), st.booleans()),
    max_size=3,
    unique_by=lambda order: order[0],
).map(tuple)
ancestors = st.one_of(st.none(), st.none(), st.just(("P", 1)))


def alternatives(of: st.SearchStrategy[NaiveFilter], *, size: int) -> st.SearchStrategy[Any]:
    """Up to two alternatives of up to `size` filters each."""
    return st.lists(st.lists(of, max_size=size).map(tuple), min_size=1, max_size=2).map(tuple)


# One simple kind of query per access path of the emulator, and arbitrary ones.
queries = st.one_of(
    st.builds(NaiveQuery, st.just(((),)), orders, ancestors),
    st.builds(NaiveQuery, st.tuples(st.tuples(any_filters)), orders, ancestors),
    st.builds(
        NaiveQuery,
        st.lists(st.tuples(any_filters), min_size=2, max_size=3).map(tuple),
        orders,
        ancestors,
    ),
    st.builds(NaiveQuery, alternatives(any_filters, size=3), orders, ancestors),
    st.builds(
        NaiveQuery, alternatives(key_filters, size=2), st.just(()), ancestors, kind=st.none()
    ),
).map(lambda asked: allowed(asked))

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _stored(items: Any) -> Message:
    """Return one value as it is, several as an array."""
    if items == "unindexed":
        return value(1, indexed=False)
    return value(items[0] if len(items) == 1 else items)


class Subject:
    def __init__(self) -> None:
        self.storage = Storage()
        self.engine = Engine(self.storage)
        self.model: Entities = {}

    def apply(self, path: Path, content: dict[str, Any] | None) -> None:
        request = CommitRequest(project_id=PROJECT, mode=CommitRequest.NON_TRANSACTIONAL)
        mutation = request.mutations.add()
        if content is None:
            mutation.delete.CopyFrom(key(*path))
            self.model.pop(path, None)
        else:
            stored = entity(key(*path))
            for name, items in content.items():
                stored.properties[name].CopyFrom(_stored(items))
            mutation.upsert.CopyFrom(stored)
            self.model[path] = {
                name: items for name, items in content.items() if items != "unindexed"
            }
        self.engine.commit(request)

    def run(self, query: Message, **read_options: Any) -> Message:
        request = RunQueryRequest(project_id=PROJECT, query=query)
        request.read_options.SetInParent()
        for name, option in read_options.items():
            if name == "read_time":
                request.read_options.read_time.CopyFrom(option)
            else:
                setattr(request.read_options, name, option)
        return self.engine.run_query(request).batch

    def close(self) -> None:
        self.storage.close()


def to_message(asked: NaiveQuery) -> Message:
    message = query(
        asked.kind,
        orders=tuple(("-" if descending else "") + name for name, descending in asked.orders),
        projection=asked.shown,
    )
    for name in asked.distinct:
        message.distinct_on.add().name = name
    ancestor = [] if asked.ancestor is None else [(KEY, "ancestor", key(*asked.ancestor))]
    parts = [
        where(*((f.name, f.op, _operand(f)) for f in alternative), *ancestor)
        for alternative in asked.alternatives
    ]
    if all(part.composite_filter.filters for part in parts):
        # An alternative without filters makes the others meaningless.
        message.filter.composite_filter.op = message.filter.composite_filter.OR
        message.filter.composite_filter.filters.extend(parts)
    return message


def _operand(item: NaiveFilter) -> Any:
    convert = (lambda path: key(*path)) if item.name == KEY else (lambda plain: plain)
    if item.op in ("in", "not in"):
        return [convert(each) for each in item.operand]
    return convert(item.operand)


def allowed(asked: NaiveQuery) -> NaiveQuery:
    """Reduce a query to what the comments of the proto allow and `to_message` can express."""
    negated = False
    alternatives = []
    for alternative in asked.alternatives:
        kept = []
        for item in alternative:
            if item.op in ("!=", "not in"):
                if negated:
                    continue
                negated = True
            kept.append(item)
        alternatives.append(tuple(kept))
    every = [item for alternative in alternatives for item in alternative]
    if any(item.op == "not in" for item in every):
        alternatives = [tuple(item for item in every if item.op != "in")]
    if asked.ancestor is None and not all(alternatives):
        alternatives = [()]
    return replace(asked, alternatives=tuple(dict.fromkeys(alternatives)))


def path_of(message: KeyPb) -> Path:
    flat: list[str | int] = []
    for element in message.path:
        flat += [element.kind, element.name or element.id]
    return tuple(flat)


def paths_of(batch: Message) -> list[Path]:
    return [path_of(result.entity.key) for result in batch.entity_results]
