"""A batch job without contention: its cost of visiting 10,000 learners one after the other.

Each visit takes another learner's lock, in batch priority, and releases it. Nothing else contends.
The baseline is the least that any lock on memcached costs: an add and a delete. The difference is
the check for waiting interactive requests.

The contenders take turns of a hundred visits each, so that changes in the machine's speed affect
all. Times are means, because rare costs of a visit (a garbage collection) count in a batch job. As
in `lock`, there is a server on the client's core and one on another.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pymemcache.client.base import PooledClient

import userlock
from benchmarks import locks, machine, peers, scheme2016
from benchmarks.figures import Measurement, Ratio, Section, Table
from benchmarks.locks import Store
from benchmarks.runner import Around, Contender, Operation, interleave, mean
from benchmarks.server import Server
from userlock.lock.lease import PriorityName

BASELINE = "pymemcache PooledClient add+delete"
_A_ROUND = 100
_RECORD = b"x" * 100
_EXPIRE_SECONDS = 61


def run(*, quick: bool) -> Section:
    """Measure; about 15 seconds, or 2 if `quick`."""
    learners, learners_of_2016 = (500, 1) if quick else (10_000, 3)
    placements = machine.placements()
    groups: dict[str, dict[str, Contender]] = {}
    with contextlib.ExitStack() as stack:
        for placement in placements:
            server = stack.enter_context(locks.started(Store.MEMCACHED, core=placement.core))
            groups[placement.title] = {
                name: Contender(
                    name=f"{name}, {placement.title}", operations=_visits(visit), around=around
                )
                for name, (visit, around) in _contenders(stack, server).items()
            }
        stack.enter_context(machine.client_placed())
        everybody = [one for group in groups.values() for one in group.values()]
        times = interleave(everybody, rounds=learners // _A_ROUND, operations=_A_ROUND, centre=mean)
        slow = _of_2016(peers.Scheme2016(server.address, batch=True), learners_of_2016)
    return Section(
        name="batch",
        title="Batch: learners without contention",
        method=(
            f"{learners:,} learners are visited one after the other by each contender, in turns of "
            f"{_A_ROUND}: the mean time of a visit, its ratio to a bare add and delete in the same "
            "round, and the time for all."
        ),
        tables=tuple(
            Table(
                title=f"{learners:,} learners, memcached {title}",
                measurements=(
                    *itertools.chain.from_iterable(
                        _measurements(name, times[one.name], times[group[BASELINE].name], learners)
                        for name, one in group.items()
                    ),
                    # Its time is sleep alone, wherever the server is.
                    *_measurements(locks.SCHEME_2016, slow, None, learners),
                ),
            )
            for title, group in groups.items()
        ),
        notes=(
            f"Learners for the scheme of 2016: {learners_of_2016}, as it sleeps for "
            f"{scheme2016.BATCH_HEAD_START_SECONDS:g} s before each; its time for all is computed.",
        ),
    )


def _contenders(
    stack: contextlib.ExitStack, server: Server
) -> dict[str, tuple[Callable[[str], object], Around]]:
    """Return by contender the function that visits a learner, and the context around all visits."""
    pooled = PooledClient(server.pair)
    stack.callback(pooled.close)
    url = f"memcache://{server.address}?prefix=bench"
    # With another policy an outage would be measured as a fast lock.
    service = userlock.LockService.from_url(url, outage="fail")
    stack.callback(service.close)
    return {
        BASELINE: (partial(_add_and_delete, pooled), contextlib.nullcontext),
        "userlock: with global_lock(id, priority='batch')": (
            _with_statement,
            lambda: userlock.scope(service),
        ),
        "userlock: LockService alone, batch": (
            partial(_acquire_and_release, service, "batch"),
            contextlib.nullcontext,
        ),
        "userlock: LockService alone, interactive": (
            partial(_acquire_and_release, service, "interactive"),
            contextlib.nullcontext,
        ),
    }


def _measurements(
    contender: str, values: list[float], base: list[float] | None, learners: int
) -> tuple[Measurement, ...]:
    """Return one contender's figures, from times in nanoseconds per visit."""
    average = statistics.fmean(values)
    ratio = None
    if base is not None and contender != BASELINE:
        ratio = Ratio.of(values, BASELINE, base)
    return (
        Measurement(
            contender=contender,
            metric="visit",
            value=average / 1e3,
            unit="us",
            ratio=ratio,
            samples=len(values),
        ),
        Measurement(
            contender=contender,
            metric="all",
            value=average * learners / 1e9,
            unit="s",
            samples=len(values),
        ),
    )


def _visits(visit: Callable[[str], object]) -> Callable[[int], Iterable[Operation]]:
    """Make operations for a `Contender`: each visits another learner."""
    numbers = itertools.count()
    return lambda count: [partial(visit, f"learner-{next(numbers)}") for _ in range(count)]


def _add_and_delete(client: Any, learner: str) -> None:
    key = f"bench:lock={learner}"
    added = client.add(key, _RECORD, expire=_EXPIRE_SECONDS, noreply=False)
    if not (added and client.delete(key, noreply=False)):
        raise RuntimeError("memcached did not add and delete the item")


def _with_statement(learner: str) -> None:
    with userlock.global_lock(learner, priority="batch"):
        pass


def _acquire_and_release(
    service: userlock.LockService, priority: PriorityName, learner: str
) -> None:
    service.release(service.acquire(learner, priority=priority))


def _of_2016(client: peers.Client, learners: int) -> list[float]:
    times = []
    for number in range(learners):
        lock = client.lock(f"learner-of-2016-{number}")
        began = time.perf_counter_ns()
        lock.acquire()
        lock.release()
        times.append(float(time.perf_counter_ns() - began))
    client.close()
    return times
