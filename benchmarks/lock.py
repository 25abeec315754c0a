"""An uncontended lock: acquire and release, compared with the floor and with other locks.

The floor is two round trips on a bare socket: to memcached with the very bytes of userlock, to
Redis with the minimum of a safe lock (`wire.py`). Each lock is compared with the floor of its own
server, in the same round. pymemcache's add and delete, at its defaults but with `noreply=False`, is
the cost of a hand-made lock. That lock may delete another holder's lock, has no timeouts, and hangs
when memcached does. Each contender has a connection and a lock of its own.

With two cores there are two servers of each type, one on the client's core and one on another core,
and both take part in the same rounds. On one core a round trip is two context switches. Across
cores it is two wake-ups, which cost more on virtual machines. Neither has a network in between.
With one, a round trip takes ten times as long and the difference from the floor disappears.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from pymemcache.client.base import Client, PooledClient

import userlock
from benchmarks import locks, machine, peers
from benchmarks.figures import Section, Table, compared
from benchmarks.locks import Store
from benchmarks.runner import Around, Contender, Operation, interleave, repeat
from benchmarks.server import Server
from benchmarks.wire import RawPair, RawRedisPair, overhear

FLOORS = {
    Store.MEMCACHED: "floor: a raw socket, the same bytes",
    Store.REDIS: "floor: a raw socket, SET and a script",
}
WITH_STATEMENT = "userlock: with global_lock(id)"
SERVICE = "userlock: LockService alone"
POOLED = "pymemcache PooledClient add+delete"
PLAIN = "pymemcache Client add+delete"
#: The stored lifetime of userlock's lease of a minute.
_EXPIRE_SECONDS = 61


def run(*, quick: bool) -> Section:
    """Measure; about 30 seconds, or 3 if `quick`."""
    rounds, pairs = (30, 10) if quick else (150, 20)
    kinds = locks.present()
    groups: dict[tuple[str, Store], dict[str, Contender]] = {}
    with contextlib.ExitStack() as stack:
        for placement in machine.placements():
            for store in Store:
                mine = [kind for kind in kinds if kind.store is store]
                if not mine:
                    continue
                server = stack.enter_context(locks.started(store, core=placement.core))
                operations = _operations(stack, store, server, mine)
                groups[f"{store.value}, {placement.title}", store] = {
                    name: Contender(
                        name=f"{name}, {store.value}, {placement.title}",
                        operations=repeat(operation),
                        around=around,
                    )
                    for name, (operation, around) in operations.items()
                }
        stack.enter_context(machine.client_placed())
        everybody = [one for group in groups.values() for one in group.values()]
        times = interleave(everybody, rounds=rounds, operations=pairs)
    return Section(
        name="lock",
        title="Uncontended lock: acquire and release",
        method=(
            f"Median time of a pair over {rounds} rounds of {pairs} pairs each, all contenders in "
            "each round, and its ratio to the floor (two round trips on a bare socket to the same "
            "server) in the same round."
        ),
        tables=tuple(
            Table(
                title=title,
                measurements=compared(
                    {name: times[one.name] for name, one in group.items()},
                    metric="pair",
                    baseline=FLOORS[store],
                ),
            )
            for (title, store), group in groups.items()
        ),
        notes=(
            "sherlock's client, pylibmc, is in C; the others are in Python. tooz, sherlock and "
            "python-redis-lock take three round trips.",
            *locks.missing(),
        ),
    )


def _operations(
    stack: contextlib.ExitStack, store: Store, server: Server, kinds: list[locks.Kind]
) -> dict[str, tuple[Operation, Around]]:
    """Return the operations to time on one server, by their names in its table."""
    bare: Around = contextlib.nullcontext
    found: dict[str, tuple[Operation, Around]] = {}
    if store is Store.MEMCACHED:
        floor = RawPair(server.pair, overhear(server.pair, _two_pairs)[-2:])
        stack.callback(floor.close)
        service = _service(server.address)
        stack.callback(service.close)
        pooled, plain = PooledClient(server.pair), Client(server.pair)
        stack.callback(pooled.close)
        stack.callback(plain.close)

        def with_statement() -> None:
            with userlock.global_lock("learner-1"):
                pass

        found[FLOORS[store]] = floor.run, bare
        found[WITH_STATEMENT] = with_statement, lambda: userlock.scope(service)
        found[POOLED] = _add_and_delete(pooled, "bench:lock=learner-3", floor.record), bare
        found[PLAIN] = _add_and_delete(plain, "bench:lock=learner-4", floor.record), bare
    else:
        redis_floor = RawRedisPair(server.pair, key="floor", ttl_seconds=_EXPIRE_SECONDS)
        stack.callback(redis_floor.close)
        found[FLOORS[store]] = redis_floor.run, bare
    for kind in kinds:
        client = kind.connect(server.address)
        stack.callback(peers.close_quietly, client)
        name = SERVICE if kind.name == locks.USERLOCK else kind.name
        found[name] = _pair(client.lock(f"of-{kind.name.replace(' ', '-')}")), bare
    return found


def _pair(lock: peers.Lock) -> Operation:
    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def _service(address: str) -> userlock.LockService:
    # With another policy an outage would be measured as a fast lock.
    return userlock.LockService.from_url(f"memcache://{address}?prefix=bench", outage="fail")


def _two_pairs(address: str) -> None:
    """Run two pairs: a one-time request (the server's protocol version) comes before the second."""
    service = _service(address)
    for _ in range(2):
        service.release(service.acquire("learner-0"))
    service.close()


def _add_and_delete(client: Any, key: str, record: bytes) -> Callable[[], None]:
    def pair() -> None:
        added = client.add(key, record, expire=_EXPIRE_SECONDS, noreply=False)
        if not (added and client.delete(key, noreply=False)):
            raise RuntimeError("memcached did not add and delete the item")

    return pair
