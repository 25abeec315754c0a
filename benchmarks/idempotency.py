"""Idempotent requests: a first request and its replay, against the same handler without a key.

Against the Datastore emulator in a process of its own, with the lock in a real memcached. Each
operation is of a user of its own: lock, an entity read and written, the answer. Rounds have one
operation of each contender, in random order. Round trips are counted at the client of Datastore,
and by memcached.

Equal requests at once are threads of this process, and so wait for its one interpreter, too.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from google.cloud import ndb

import userlock
from benchmarks import emulated
from benchmarks.figures import Measurement, Ratio, Section, Table, percentile
from benchmarks.runner import Contender, Operation, interleave
from benchmarks.server import Memcached, memcached
from userlock.idempotency import Flow, Flows, Request

BASELINE = "lock, transaction: get and put"
AT_ONCE = 64


class BenchPayer(userlock.UserModel):
    """Written by the measured requests."""

    _lock_id_from_key = userlock.key_id
    points = ndb.IntegerProperty(default=0)


def run(*, quick: bool) -> Section:
    """Measure; about 30 seconds, or 5 if `quick`."""
    with (
        tempfile.TemporaryDirectory() as folder,
        emulated.datastore(Path(folder)),
        memcached() as server,
    ):
        userlock.configure(
            service=userlock.LockService.from_url(f"memcache://{server.address}"),
        )
        requests = _Requests(ndb.Client())
        tables = (
            _each(requests, server, rounds=10 if quick else 400),
            _at_once(requests, rounds=2 if quick else 15),
        )
    return Section(
        name="idempotency",
        title="Idempotent requests",
        method="The emulator in a process of its own; a real memcached. A user per operation.",
        tables=tables,
    )


# --- the handler --------------------------------------------------------------------------------


def _change(user_id: str) -> int:
    payer = BenchPayer.get_by_id(user_id) or BenchPayer(id=user_id)
    payer.points += 1
    payer.put()
    return int(payer.points)


def _last(flow: Flow) -> None:
    with flow.last() as end:
        end.respond({"points": _change(flow.user_id)}, 201)


def _phases(flow: Flow) -> None:
    flow.phase("change", lambda: _change(flow.user_id))
    flow.external("charge", lambda key: key[:8])
    _last(flow)


class _Requests:
    """Requests of users who have none yet, each in an ndb context and a scope of its own."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._flows = Flows()
        self._users = (f"payer-{number}" for number in itertools.count())

    def bare(self, in_transaction: bool) -> Operation:
        """Return the handler without a key, under the user's lock."""

        def handle(user_id: str) -> None:
            with userlock.global_lock(user_id):
                if in_transaction:
                    ndb.transaction(lambda: _change(user_id))
                else:
                    _change(user_id)

        return partial(self._alone, partial(handle, next(self._users)))

    def first(self, function: Callable[[Flow], None]) -> Operation:
        """Return a request that is sent for the first time."""
        request = Request(next(self._users), str(uuid.uuid4()), "bench", {"to": "home"})
        return partial(self._alone, lambda: self._flows.run(request, function, wait_timeout=60))

    def replay(self, function: Callable[[Flow], None]) -> Operation:
        """Return a request that is finished, to be sent again."""
        operation = self.first(function)
        operation()
        return operation

    def _alone(self, handle: Callable[[], object]) -> object:
        with self.client.context(), userlock.scope():
            return handle()


def _contenders(requests: _Requests) -> dict[str, Callable[[], Operation]]:
    return {
        BASELINE: partial(requests.bare, True),
        "the same without a transaction": partial(requests.bare, False),
        "flow.last()": partial(requests.first, _last),
        "flow.last(), replay": partial(requests.replay, _last),
        "phase, call, flow.last()": partial(requests.first, _phases),
        "phase, call, flow.last(), replay": partial(requests.replay, _phases),
    }


def _operations(make: Callable[[], Operation], count: int) -> list[Operation]:
    return [make() for _ in range(count)]


def _each(requests: _Requests, server: Memcached, rounds: int) -> Table:
    made = _contenders(requests)
    times = interleave(
        [
            Contender(name=name, operations=partial(_operations, make))
            for name, make in made.items()
        ],
        rounds=rounds,
        operations=1,
    )
    found: list[Measurement] = []
    for name, values in times.items():
        compared = name != BASELINE and not name.endswith("replay")
        ratio = Ratio.of(values, BASELINE, times[BASELINE]) if compared else None
        for percent in (50, 99):
            found.append(
                Measurement(
                    contender=name,
                    metric=f"p{percent}",
                    value=percentile(values, percent) / 1e6,
                    unit="ms",
                    ratio=ratio if percent == 50 else None,
                    samples=len(values),
                )
            )
        for metric, count in zip(
            ("Datastore", "memcached"), _counted(requests, server, made[name]()), strict=True
        ):
            found.append(
                Measurement(contender=name, metric=metric, value=count, unit="count", samples=1)
            )
    return Table(title="A request", measurements=tuple(found))


def _counted(requests: _Requests, server: Memcached, operation: Operation) -> Iterator[float]:
    before = server.requests()
    yield emulated.round_trips(requests.client, operation)
    yield server.requests() - before


# --- many at once -------------------------------------------------------------------------------


def _at_once(requests: _Requests, rounds: int) -> Table:
    """Return the time of equal requests at once, and that of one run and as many replays."""
    together, one_by_one = [], []
    for _ in range(rounds):
        together.append(_time(partial(_all_at_once, requests.first(_phases))))
        operation = requests.first(_phases)
        one_by_one.append(_time(operation) + AT_ONCE * _time(operation))
    found = []
    for name, values in (
        ("one run and 64 replays in turn", one_by_one),
        ("64 at once", together),
    ):
        ratio = None if values is one_by_one else Ratio.of(values, "one by one", one_by_one)
        value = percentile(values, 50) * 1e3
        found.append(
            Measurement(
                contender=name, metric="all", value=value, unit="ms", ratio=ratio, samples=rounds
            )
        )
    return Table(title=f"{AT_ONCE} equal requests", measurements=tuple(found))


def _all_at_once(operation: Operation) -> None:
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(operation())) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runs = sum(not each.replayed for each in answers)
    if (len(answers), runs, len({each.body for each in answers})) != (AT_ONCE, 1, 1):
        raise RuntimeError(f"{len(answers)} answers, {runs} runs")


def _time(operation: Callable[[], object]) -> float:
    began = time.perf_counter()
    operation()
    return time.perf_counter() - began
