"""An uncontended lock: acquire and release, against the floor and against pymemcache.

The floor is two round trips on a bare socket with the very bytes that userlock
sends. pymemcache's add and delete, at its defaults but with `noreply=False`,
is what a hand-made lock costs: it may delete somebody else's lock, has no
time-outs, and hangs when memcached does. Each contender has a connection and a
lock of its own, and the same record is stored by all.

With two cores there are two memcached servers, one on the client's core and
one on another core, and both take part in the same rounds. On one core a round
trip is two context switches; across cores it is two wake-ups, which cost more
on virtual machines. Neither has a network in between, where a round trip takes
ten times as long and the difference to the floor disappears.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymemcache.client.base import Client, PooledClient

import userlock
from benchmarks import machine
from benchmarks.figures import Section, Table, compared
from benchmarks.runner import Contender, Operation, interleave, repeat
from benchmarks.server import Server, memcached
from benchmarks.wire import RawPair, overhear

FLOOR = "floor: a raw socket, the same bytes"
WITH_STATEMENT = "userlock: with global_lock(id)"
SERVICE = "userlock: LockService alone"
POOLED = "pymemcache PooledClient add+delete"
PLAIN = "pymemcache Client add+delete"
#: As long as userlock's lease of a minute is stored.
_EXPIRE_SECONDS = 61


@dataclass(frozen=True, slots=True)
class _Placement:
    title: str
    core: int | None


def run(*, quick: bool) -> Section:
    """Measure; about 8 seconds, or 1 if `quick`."""
    rounds, pairs = (40, 10) if quick else (300, 20)
    cores = machine.cores()
    if not machine.can_pin():
        placements = [_Placement("wherever the system puts them", None)]
    else:
        placements = [_Placement("client and memcached on one core", cores[0])]
        if len(cores) > 1:
            placements.append(_Placement("client and memcached on two cores", cores[1]))
    with contextlib.ExitStack() as stack:
        contenders: dict[str, dict[str, Contender]] = {}
        for placement in placements:
            server = stack.enter_context(memcached(core=placement.core))
            contenders[placement.title] = _contenders(stack, server, placement.title)
        if machine.can_pin():
            stack.enter_context(machine.pinned(cores[0]))
        everybody = [one for group in contenders.values() for one in group.values()]
        times = interleave(everybody, rounds=rounds, operations=pairs)
    return Section(
        name="lock",
        title="Uncontended lock: acquire and release",
        method=(
            f"Median time of a pair over {rounds} rounds of {pairs} pairs each, and its ratio to "
            "the floor (two round trips on a bare socket) in the same round."
        ),
        tables=tuple(
            Table(
                title=title,
                measurements=compared(
                    {name: times[one.name] for name, one in group.items()},
                    metric="pair",
                    baseline=FLOOR,
                ),
            )
            for title, group in contenders.items()
        ),
    )


def _contenders(
    stack: contextlib.ExitStack, server: Server, placement: str
) -> dict[str, Contender]:
    """The contenders on one server, by the names that they have in its table."""
    floor = RawPair(server.pair, overhear(server.pair, _one_pair))
    stack.callback(floor.close)
    service = _service(server.address)
    stack.callback(service.close)
    pooled = PooledClient(server.pair)
    stack.callback(pooled.close)
    plain = Client(server.pair)
    stack.callback(plain.close)

    def with_statement() -> None:
        with userlock.global_lock("learner-1"):
            pass

    def service_alone() -> None:
        service.release(service.acquire("learner-2"))

    operations: dict[str, Operation] = {
        FLOOR: floor.run,
        WITH_STATEMENT: with_statement,
        SERVICE: service_alone,
        POOLED: _add_and_delete(pooled, "bench:lock=learner-3", floor.record),
        PLAIN: _add_and_delete(plain, "bench:lock=learner-4", floor.record),
    }
    return {
        name: Contender(
            name=f"{name}, {placement}",
            operations=repeat(operation),
            around=lambda: userlock.scope(service),
        )
        for name, operation in operations.items()
    }


def _service(address: str) -> userlock.LockService:
    # An outage would be measured as a fast lock.
    return userlock.LockService.from_url(f"memcache://{address}?prefix=bench", outage="fail")


def _one_pair(address: str) -> None:
    service = _service(address)
    service.release(service.acquire("learner-0"))
    service.close()


def _add_and_delete(client: Any, key: str, record: bytes) -> Callable[[], None]:
    def pair() -> None:
        added = client.add(key, record, expire=_EXPIRE_SECONDS, noreply=False)
        if not (added and client.delete(key, noreply=False)):
            raise RuntimeError("memcached did not add and delete the item")

    return pair
