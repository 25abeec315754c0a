"""Random programs: a seed and a project make the same steps on every server.

A program stores a few entities and then writes, reads, queries, aggregates and makes mistakes. Its
transactions come one after the other, and each ends: a server that waits for a lock would stall the
run, and contention depends on timing.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tools.compare import messages
from tools.compare.messages import At, Embedded, Path, Unindexed
from tools.compare.queries import Queries
from userlock_emulator.datastore.protos import (
    AllocateIdsRequest,
    BeginTransactionRequest,
    CommitRequest,
    Key,
    LookupRequest,
    Message,
    Mutation,
    ReserveIdsRequest,
    RollbackRequest,
)

_STEPS = 20
#: Stands for the id of the program's current transaction; the run fills it in.
TRANSACTION = b"$transaction"
#: Stands for the end of the last query's results.
CURSOR = b"$cursor"
#: Stands for the version in the last look-up's first result.
VERSION = 77
#: The property that may hold arrays.
ARRAYS = "c"
#: The feature of a look-up of what was written before it.
CHECK = "after a write"
#: Entities with automatic ids are here: each server's ids, and so their order, differ.
AUTOMATIC = "automatic"

_PATHS: list[Path] = [
    *(("K", number) for number in range(1, 7)),
    ("K", "x"),
    ("K", "y"),
    *(("P", 1, "K", number) for number in range(1, 4)),
    ("P", 1),
    ("J", 1),
]
_VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 3, 2**53 + 1, 0.0, 1.5, -2.5, float("inf")),
    *("", "a", "ab", "b", "ü", b"", b"ab", At(1_700_000_000_123_456), ("K", 1)),
]


@dataclass(frozen=True)
class Step:
    """One request.

    Attributes:
        rpc: the name of the RPC.
        request: its message; transactions are placeholders.
        features: words that tell of what is special in it, for the table of known differences.
    """

    rpc: str
    request: Message
    features: frozenset[str] = field(default_factory=frozenset)


def program(seed: int, project: str) -> Iterator[Step]:
    """Yield the steps of a program."""
    author = _Author(random.Random(seed), project)
    yield from author.first()
    count = 0
    while count < _STEPS:
        for step in author.next():
            count += 1
            yield step


class _Author:
    def __init__(self, chance: random.Random, project: str) -> None:
        self._chance = chance
        self._project = project
        self._queries = Queries(chance, project)

    def first(self) -> Iterator[Step]:
        mutations = [
            Mutation(upsert=self._entity(path)) for path in _PATHS if self._chance.random() < 0.8
        ]
        yield self._commit(mutations, "load")

    def next(self) -> Iterator[Step]:
        kinds = [
            (8, self._query),
            (2, self._pages),
            (3, self._aggregation),
            (4, self._write),
            (2, self._lookup),
            (1, self._versioned),
            (3, self._transaction),
            (1, self._ids),
            (2, self._mistake),
        ]
        (make,) = self._chance.choices([made for _, made in kinds], [much for much, _ in kinds])
        yield from make()

    # --- reads ------------------------------------------------------------------------------------

    def _query(self) -> Iterator[Step]:
        request, features = self._queries.query()
        yield Step("RunQuery", request, features)

    def _pages(self) -> Iterator[Step]:
        """Read a query's results in two pages."""
        request, features = self._queries.query()
        if request.HasField("gql_query"):
            return
        features |= {"limit", "pages"}
        request.query.limit.value = self._chance.randint(1, 3)
        yield Step("RunQuery", request, features)
        following = type(request)()
        following.CopyFrom(request)
        following.query.offset = 0
        following.query.start_cursor = CURSOR
        yield Step("RunQuery", following, features | {"second page"})

    def _aggregation(self) -> Iterator[Step]:
        request, features = self._queries.aggregation()
        yield Step("RunAggregationQuery", request, features)

    def _lookup(self) -> Iterator[Step]:
        request = LookupRequest(project_id=self._project)
        for path in self._chance.sample(_PATHS, self._chance.randint(1, 3)):
            request.keys.append(messages.key(self._project, path))
        features = set()
        if self._chance.random() < 0.2:
            request.keys.append(request.keys[0])
            features.add("twice")
        if self._chance.random() < 0.3:
            request.property_mask.paths.extend(self._chance.choice([["a"], ["b", "c"], ["d.e"]]))
            features.add("read mask")
        yield Step("Lookup", request, frozenset(features))

    # --- writes -----------------------------------------------------------------------------------

    def _write(self) -> Iterator[Step]:
        mutations, features = self._mutations()
        yield self._commit(mutations, *features)
        yield self._check(mutations, features)

    def _versioned(self) -> Iterator[Step]:
        """Write what has, or has not, changed since it was read."""
        path = self._chance.choice(_PATHS)
        key = messages.key(self._project, path)
        features = {"base version"}
        yield Step("Lookup", LookupRequest(project_id=self._project, keys=[key]))
        if self._chance.random() < 0.5:
            features.add("stale")
            yield self._commit([Mutation(upsert=self._entity(path))])
        verb = self._chance.choice(["update", "upsert", "delete"])
        changed = key if verb == "delete" else self._entity(path)
        mutations = [Mutation(**{verb: changed}, base_version=VERSION)]
        yield self._commit(mutations, verb, *features)
        yield self._check(mutations, features)

    def _check(self, mutations: list[Message], features: Iterable[str]) -> Step:
        request = LookupRequest(project_id=self._project)
        for mutation in mutations:
            written = getattr(mutation, mutation.WhichOneof("operation"))
            request.keys.append(written if isinstance(written, Key) else written.key)
        return Step("Lookup", request, frozenset({*features, CHECK}))

    def _mutations(self) -> tuple[list[Message], set[str]]:
        features: set[str] = set()
        paths = self._chance.sample(_PATHS, self._chance.randint(1, 3))
        return [self._mutation(path, features) for path in paths], features

    def _mutation(self, path: Path, features: set[str]) -> Message:
        verb = self._chance.choice(["insert", "update", "upsert", "upsert", "delete"])
        features.add(verb)
        if verb == "delete":
            return Mutation(delete=messages.key(self._project, path))
        mutation = Mutation(**{verb: self._entity(path)})
        if verb != "insert" and self._chance.random() < 0.2:
            mutation.property_mask.paths.extend(
                self._chance.choice([["a"], ["a", "c"], ["d.e"], ["missing"]])
            )
            features.add("write mask")
        if self._chance.random() < 0.2:
            self._transform(mutation.property_transforms.add())
            features.add("transform")
        return mutation

    def _transform(self, transform: Message) -> None:
        transform.property = self._chance.choice(["a", "b", "new", "d.n"])
        number = messages.value(self._chance.choice([1, -1, 1.5]), self._project)
        match self._chance.choice(["increment", "maximum", "minimum", "append", "remove"]):
            case "append":
                transform.append_missing_elements.values.append(number)
            case "remove":
                transform.remove_all_from_array.values.append(number)
            case name:
                getattr(transform, name).CopyFrom(number)

    def _entity(self, path: Path) -> Message:
        properties: dict[str, Any] = {}
        for name in ("a", "b", "c"):
            if self._chance.random() < 0.8:
                properties[name] = self._value(arrays=name == ARRAYS)
        if self._chance.random() < 0.1:
            properties["empty"] = []
        if self._chance.random() < 0.3:
            properties["d"] = Embedded(e=self._value(), n=1)
        return messages.entity(self._project, path, properties)

    def _value(self, *, arrays: bool = False) -> Any:
        if arrays and self._chance.random() < 0.6:
            return [self._chance.choice(_VALUES) for _ in range(self._chance.randint(1, 3))]
        if self._chance.random() < 0.1:
            return Unindexed("hidden")
        # Small numbers above all, so that there are ties and matches.
        return self._chance.choice(_VALUES if self._chance.random() < 0.4 else [0, 1, 2, 3])

    def _commit(self, mutations: list[Message], *features: str) -> Step:
        request = CommitRequest(
            project_id=self._project, mode=CommitRequest.NON_TRANSACTIONAL, mutations=mutations
        )
        return Step("Commit", request, frozenset(features))

    # --- transactions and ids ---------------------------------------------------------------------

    def _transaction(self) -> Iterator[Step]:
        features = frozenset({"transaction"})
        begin = BeginTransactionRequest(project_id=self._project)
        read_only = self._chance.random() < 0.2
        if read_only:
            begin.transaction_options.read_only.SetInParent()
            features |= {"read-only"}
        yield Step("BeginTransaction", begin, features)
        for _ in range(self._chance.randint(0, 2)):
            step = next(self._chance.choice([self._lookup, self._query])())
            step.request.read_options.Clear()
            step.request.read_options.transaction = TRANSACTION
            yield Step(step.rpc, step.request, step.features | features)
        wrote = None
        if self._chance.random() < 0.8:
            mutations, words = wrote = self._mutations()
            commit = CommitRequest(
                project_id=self._project,
                mode=CommitRequest.TRANSACTIONAL,
                transaction=TRANSACTION,
                mutations=mutations,
            )
            yield Step("Commit", commit, features | words)
        rollback = RollbackRequest(project_id=self._project, transaction=TRANSACTION)
        # After a failed commit it ends the transaction.
        yield Step("Rollback", rollback, features)
        if wrote:
            yield self._check(*wrote)

    def _ids(self) -> Iterator[Step]:
        incomplete = messages.key(self._project, ("K",), AUTOMATIC)
        match self._chance.choice(["allocate", "reserve", "insert"]):
            case "allocate":
                allocate = AllocateIdsRequest(project_id=self._project, keys=[incomplete] * 2)
                yield Step("AllocateIds", allocate)
            case "reserve":
                taken = messages.key(self._project, ("K", 77), AUTOMATIC)
                yield Step("ReserveIds", ReserveIdsRequest(project_id=self._project, keys=[taken]))
            case _:
                stored = messages.entity(self._project, ("K",), {"a": 1}, AUTOMATIC)
                yield self._commit([Mutation(insert=stored)], "automatic id")

    # --- mistakes ---------------------------------------------------------------------------------

    def _mistake(self) -> Iterator[Step]:
        name = self._chance.choice(
            [
                *("same entity twice", "incomplete update", "empty kind", "reserved kind"),
                *("reserved name", "long indexed text", "long name", "nested array"),
                *("no keys", "incomplete lookup", "unknown transaction", "commit without one"),
                *("complete allocation", "other project", "no project", "no mode"),
                *("insert with a version", "update and delete"),
            ]
        )
        yield self._wrong(name)

    def _wrong(self, name: str) -> Step:
        project = self._project
        feature = frozenset({f"mistake: {name}"})
        good = messages.key(project, ("K", 1))

        def commit(*mutations: Message) -> Step:
            return Step("Commit", self._commit(list(mutations)).request, feature)

        def upsert(path: Path, **properties: Any) -> Step:
            return commit(Mutation(upsert=messages.entity(project, path, properties)))

        match name:
            case "same entity twice":
                stored = messages.entity(project, ("K", 1), {"a": 1})
                return commit(Mutation(upsert=stored), Mutation(upsert=stored))
            case "incomplete update":
                return commit(Mutation(update=messages.entity(project, ("K",), {})))
            case "empty kind":
                return upsert(("", 1))
            case "reserved kind":
                return upsert(("__K__", 1))
            case "reserved name":
                return upsert(("K", "__x__"))
            case "long indexed text":
                return upsert(("K", 1), a="x" * 1501)
            case "long name":
                return upsert(("K", "x" * 1501))
            case "nested array":
                return upsert(("K", 1), a=[[1]])
            case "no keys":
                return Step("Lookup", LookupRequest(project_id=project), feature)
            case "incomplete lookup":
                keys = [messages.key(project, ("K",))]
                return Step("Lookup", LookupRequest(project_id=project, keys=keys), feature)
            case "unknown transaction":
                request = LookupRequest(project_id=project, keys=[good])
                request.read_options.transaction = b"none"
                return Step("Lookup", request, feature)
            case "commit without one":
                request = CommitRequest(project_id=project, mode=CommitRequest.TRANSACTIONAL)
                return Step("Commit", request, feature)
            case "complete allocation":
                allocate = AllocateIdsRequest(project_id=project, keys=[good])
                return Step("AllocateIds", allocate, feature)
            case "other project":
                keys = [messages.key("another-project", ("K", 1))]
                return Step("Lookup", LookupRequest(project_id=project, keys=keys), feature)
            case "no project":
                return Step("Lookup", LookupRequest(keys=[good]), feature)
            case "insert with a version":
                stored = messages.entity(project, ("K", "new"), {"a": 1})
                return commit(Mutation(insert=stored, base_version=1))
            case "update and delete":
                stored = messages.entity(project, ("K", 1), {"a": 1})
                return commit(Mutation(update=stored), Mutation(delete=good))
            case "no mode":
                request = CommitRequest(project_id=project, mutations=[Mutation(delete=good)])
                return Step("Commit", request, feature)
        raise AssertionError(name)
