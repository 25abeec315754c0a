"""The cost of the model layer for each load, put, delete and transaction.

The same ten-property model as a plain `ndb.Model` and as a `UserModel`, in four variants that take
part in the same rounds:

    ndb alone             userlock removed from ndb (see `pristine`), and a client whose
                          stub was never behind its gate: the baseline
    ndb.Model             a plain model in a process that has imported userlock
    UserModel, no places  stamped, checked and fenced; `capture_places` off
    UserModel             the same with call sites: the default

All but the baseline hold the entity's lock (in memory: the lock itself is not measured here). There
is no network: Datastore's responses are prepared and immediate (`instant`), so percentages are of
ndb's own work alone. A real look-up or commit takes some milliseconds more.

Times are processor time: nothing here waits, and other processes on the machine do not count.

Building an entity is part of every load, and the strictest baseline there is. That row is about
messages that did not pass the gate, as from the global cache: their versions are in the messages
themselves. The loads below it include everything.

Times are means over a round, so that garbage collections, which are more frequent with more
objects, are included. A round of the long query begins with an untimed one. Otherwise the progress
of garbage collection in the previous round would affect its time more than any difference between
the variants.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.cloud import ndb
from google.cloud.ndb import model as ndb_model

import userlock
from benchmarks import instant, pristine
from benchmarks.figures import Measurement, RatioStyle, Section, Table, compared
from benchmarks.models import LOCK_ID, LockedLearner, PlainLearner, message
from benchmarks.runner import Contender, Operation, interleave, mean
from userlock.stores import MemoryStore

BASELINE = "ndb alone"
#: Entities in one `get_multi`, `put_multi` or `delete_multi`.
_TOGETHER = 20
#: Entities in one query.
_FETCHED = 100
#: Entities in one long query, which has few rounds, and none in a quick run.
_MANY = 10_000
#: Entities in the context cache, in the table of calls.
_CACHED = (0, 100, 1000)
_LONG_ROUNDS = 15


_MODELS = (PlainLearner, LockedLearner)


@dataclass(frozen=True, slots=True)
class _Way:
    """A variant: a model class, and userlock's settings for it."""

    name: str
    model: Any
    #: None: userlock is removed.
    settings: userlock.Settings | None


_WAYS = (
    _Way(BASELINE, PlainLearner, None),
    _Way("ndb.Model beside userlock", PlainLearner, userlock.Settings()),
    _Way("UserModel, no places", LockedLearner, userlock.Settings(capture_places=False)),
    _Way("UserModel", LockedLearner, userlock.Settings()),
)


class _Bench:
    """Two ndb clients of one instant Datastore, and entities as they come from it."""

    def __init__(self, entities: int) -> None:
        self.datastore = instant.InstantDatastore(grows=False)  # what is read again is not outdated
        with pristine.restored():  # a stub without the gate, never used where it would get one
            self._client_of_ndb_alone = instant.client(self.datastore)
        self._client = instant.client(self.datastore)
        self.service = userlock.LockService(MemoryStore())
        ids = [f"entity-{number}" for number in range(entities)]
        with self._client.context():
            #: Entities as they come over the wire, all of one user.
            self.wire = {model: [message(model, key_id) for key_id in ids] for model in _MODELS}
            self.keys = {model: [ndb.Key(model, key_id) for key_id in ids] for model in _MODELS}

    @contextlib.contextmanager
    def request(self, way: _Way) -> Iterator[None]:
        """Open an ndb context, as a request has one."""
        with contextlib.ExitStack() as stack:
            if way.settings is None:
                stack.enter_context(pristine.restored())
                stack.enter_context(self._client_of_ndb_alone.context())
            else:
                stack.enter_context(self._client.context())
                stack.enter_context(userlock.scope(self.service, settings=way.settings))
            yield

    @contextlib.contextmanager
    def locked(self, way: _Way) -> Iterator[None]:
        """Hold the lock, if the variant has one."""
        with contextlib.nullcontext() if way.settings is None else userlock.global_lock(LOCK_ID):
            yield

    @contextlib.contextmanager
    def around(self, way: _Way) -> Iterator[None]:
        """Open an ndb context and hold the lock."""
        with self.request(way), self.locked(way):
            yield

    def contenders(
        self, operations: Callable[[_Way, int], list[Operation]], *, units: int = 1
    ) -> list[Contender]:
        """Return all variants of the operations."""
        return [
            Contender(
                name=way.name,
                operations=partial(operations, way),
                around=self._around(way),
                units=units,
            )
            for way in _WAYS
        ]

    def _around(self, way: _Way) -> Callable[[], AbstractContextManager[None]]:
        return lambda: self.around(way)

    # --- the operations ---------------------------------------------------------------------

    def builds(self, way: _Way, count: int) -> list[Operation]:
        """Build entity objects from their messages, the innermost step of every load in ndb."""
        results = instant.results(self.wire[way.model][:count])
        return [partial(_build, result) for result in results]

    def fetches(self, together: int, way: _Way, count: int) -> list[Operation]:
        """Make `fetch` calls for that many entities: the whole call except the network."""
        responses = [instant.queried(self.wire[way.model][:together]) for _ in range(count)]
        self.datastore.queries.clear()
        self.datastore.queries.extend(responses)
        if together == _MANY:
            gc.collect()
        return [partial(_fetch, way.model)] * count

    def gets(self, way: _Way, count: int) -> list[Operation]:
        """Make `get_multi` calls: the whole call except the network."""
        self._look_up(way, _TOGETHER, count)
        return [partial(_get, self.keys[way.model][:_TOGETHER])] * count

    def puts(self, way: _Way, count: int) -> list[Operation]:
        """Make `put` calls: the whole call except the network."""
        return [entity.put for entity in self.read(way, count)]

    def multi_puts(self, way: _Way, count: int) -> list[Operation]:
        """Make `put_multi` calls, likewise."""
        return [partial(ndb.put_multi, each) for each in self._groups(way, count)]

    def deletes(self, way: _Way, count: int) -> list[Operation]:
        """Make `delete` calls of entities that were read, likewise."""
        return [entity.key.delete for entity in self.read(way, count)]

    def multi_deletes(self, way: _Way, count: int) -> list[Operation]:
        """Make `delete_multi` calls of entities that were read, likewise."""
        groups = self._groups(way, count)
        return [partial(ndb.delete_multi, [entity.key for entity in each]) for each in groups]

    def transactions(self, way: _Way, count: int) -> list[Operation]:
        """Make transactions that get an entity and put it, from beginning to commit."""
        self._look_up(way, 1, count)
        change = partial(_change, self.keys[way.model][0])
        return [partial(ndb.transaction, change)] * count

    def read(self, way: _Way, count: int) -> list[Any]:
        """Return that many entities, read and changed, ready for a put."""
        self.datastore.queries.append(instant.queried(self.wire[way.model][:count]))
        entities = _fetch(way.model)
        for entity in entities:
            entity.points += 1
        return entities

    def _groups(self, way: _Way, count: int) -> list[list[Any]]:
        entities = self.read(way, count * _TOGETHER)
        return [entities[begin : begin + _TOGETHER] for begin in range(0, len(entities), _TOGETHER)]

    def _look_up(self, way: _Way, together: int, count: int) -> None:
        """Prepare the responses to that many look-ups."""
        responses = [instant.looked_up(self.wire[way.model][:together]) for _ in range(count)]
        self.datastore.lookups.clear()
        self.datastore.lookups.extend(responses)


def _fetch(model: Any) -> list[Any]:
    ndb.get_context().cache.clear()
    entities: list[Any] = model.query().fetch()
    return entities


def _build(result: Any) -> object:
    entity: object = ndb_model._entity_from_protobuf(result.entity)
    return entity


def _get(keys: list[Any]) -> object:
    ndb.get_context().cache.clear()
    entities: list[object] = ndb.get_multi(keys)
    return entities


def _change(key: Any) -> None:
    entity = key.get()
    entity.points += 1
    entity.put()


def run(*, quick: bool) -> Section:
    """Measure; about two minutes, or 5 seconds if `quick`."""
    rounds, kept = (20, 100) if quick else (200, 1000)
    bench = _Bench(kept + 1 if quick else _MANY)

    def measure(
        operations: Callable[[_Way, int], list[Operation]],
        count: int,
        units: int,
        metric: str,
        rounds: int = rounds,
    ) -> tuple[Measurement, ...]:
        times = interleave(
            bench.contenders(operations, units=units),
            rounds=rounds,
            operations=count,
            centre=mean,
            timer=time.process_time_ns,
            warm_up=min(2, rounds // 2),
        )
        return compared(times, metric=metric, baseline=BASELINE, added=True)

    def measure_fetch(together: int, rounds: int = rounds) -> tuple[str, tuple[Measurement, ...]]:
        operations = partial(bench.fetches, together)
        return f"fetch of {together:,}", measure(operations, 1, together, "entity", rounds)

    tables = (
        ("build an entity from its message", measure(bench.builds, 50, 1, "entity")),
        measure_fetch(_FETCHED),
        *([] if quick else [measure_fetch(_MANY, _LONG_ROUNDS)]),
        (f"get_multi of {_TOGETHER}", measure(bench.gets, 2, _TOGETHER, "entity")),
        ("put", measure(bench.puts, 10, 1, "put")),
        (f"put_multi of {_TOGETHER}", measure(bench.multi_puts, 2, _TOGETHER, "entity")),
        ("delete", measure(bench.deletes, 10, 1, "delete")),
        (f"delete_multi of {_TOGETHER}", measure(bench.multi_deletes, 2, _TOGETHER, "entity")),
        ("transaction: get, put", measure(bench.transactions, 10, 1, "transaction")),
    )
    return Section(
        name="provenance",
        title="Provenance and fencing: overhead of loads and puts",
        method=(
            f"A model of ten properties, the lock held, Datastore answering at once. Median over "
            f"{rounds} rounds of the mean processor time ({_LONG_ROUNDS} of the long query), and "
            f"the ratio to ndb without userlock in the same round."
        ),
        tables=(
            *(
                Table(title=title, measurements=figures, style=RatioStyle.OVERHEAD)
                for title, figures in tables
            ),
            Table(
                title="calls of functions in a get and a put, by entities in the context cache",
                measurements=tuple(_calls(bench, kept)),
            ),
            Table(title="memory of each entity", measurements=tuple(_memory(bench, kept))),
        ),
    )


# --- calls ----------------------------------------------------------------------------------


def _calls(bench: _Bench, most: int) -> Iterator[Measurement]:
    """Yield the number of calls of a get and a put: the same, however much is cached."""
    for way in _WAYS:
        for count in (each for each in _CACHED if each <= most):
            with bench.around(way):
                changed, *cached = bench.read(way, count + 1)
                cache = ndb.get_context().cache
                for each in cached:
                    cache[each.key] = each
                calls = 0

                def note(_frame: object, event: str, _: object) -> None:
                    nonlocal calls
                    calls += event in ("call", "c_call")

                for _ in range(2):  # the first one makes one-time objects
                    cache.pop(changed.key, None)
                    bench._look_up(way, 1, 1)
                    calls = 0
                    sys.setprofile(note)
                    try:
                        _change(changed.key)
                    finally:
                        sys.setprofile(None)
            yield Measurement(
                contender=way.name,
                metric=f"{count:,} cached",
                value=float(calls),
                unit="calls",
                samples=1,
            )


# --- memory ---------------------------------------------------------------------------------


def _memory(bench: _Bench, count: int) -> Iterator[Measurement]:
    """Yield the memory of each entity object, from its read to the end of its lock.

    All in the same ndb context, which is still open at the end.
    """
    for way in _WAYS:
        for metric, value in _memory_of(bench, way, count).items():
            yield Measurement(
                contender=way.name, metric=metric, value=value, unit="bytes", samples=count
            )


def _memory_of(bench: _Bench, way: _Way, count: int) -> dict[str, float]:
    with bench.request(way):
        with bench.locked(way):
            ndb.put_multi(bench.read(way, 3))  # one-time objects
        ndb.get_context().cache.clear()
        bench.datastore.queries.append(instant.queried(bench.wire[way.model][:count]))
        tracemalloc.start()
        try:
            empty = _traced()
            with bench.locked(way):
                entities = _fetch(way.model)
                loaded = _traced()
                ndb.put_multi(entities)
                put = _traced()
            unlocked = _traced()
            del entities
            ndb.get_context().cache.clear()
            left = _traced()
        finally:
            tracemalloc.stop()
    more = {
        "loaded": loaded - empty,
        "put_multi, lock held": put - loaded,
        "lock left": unlocked - loaded,
        "objects gone": left - empty,
    }
    return {metric: value / count for metric, value in more.items()}


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
