"""Trying a store out: does it keep a record as a lock needs it, and how long does it take?

Goes through the store's own five verbs on a lock that nobody else has, so it
tries what acquiring and releasing will do, whatever stands in between.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.store import Finding, LeaseStore, StoreUnavailable, Verdict

#: How long the record would live if the trial were cut short.
_TTL_SECONDS = 5.0
#: Above this, in seconds, an uncontended lock is slow for being in another place, not for load.
_SLOW_MEDIAN = 0.005


class Latency(NamedTuple):
    """Round trips that were timed. All times in seconds."""

    rounds: int
    p50: float
    p99: float


def new_lock_id() -> str:
    """Return a lock that nobody has."""
    return f"userlock-doctor-{secrets.token_hex(8)}"


def percentile(times: Sequence[float], fraction: float) -> float:
    """Return the time that so great a part of them does not exceed (nearest rank)."""
    ordered = sorted(times)
    return ordered[max(math.ceil(fraction * len(ordered)) - 1, 0)]


def trouble_with_records(store: LeaseStore) -> list[str]:
    """Return a phrase for each fault of the store; none if all is well.

    Raises:
        StoreUnavailable: it did not answer.
    """
    lock_id, record, line = new_lock_id(), b'["doctor"]', b"\n+i doctor"
    wrong: list[str] = []
    first = store.create(lock_id, record, _TTL_SECONDS)
    if first is None:
        return ["a record that nobody has could not be created"]
    try:
        if store.create(lock_id, b'["another"]', _TTL_SECONDS) is not None:
            wrong.append("it created a record that was there already: two can have one lock")
        stored = store.read(lock_id)
        if stored is None or stored.record != record:
            wrong.append("what was written did not come back as it was")
        longer = store.append(lock_id, line)
        if longer is None or longer.record != record + line:
            wrong.append("a line was not appended: nobody can stand in line")
        if longer is None:
            return wrong
        if store.swap(lock_id, first, b'["stale"]', _TTL_SECONDS) is not None:
            wrong.append("it took a change that was decided on an outdated version")
        newest = store.swap(lock_id, longer.version, record, _TTL_SECONDS)
        if newest is None:
            wrong.append("it refused a change of the version that it had just given")
        if store.remove(lock_id, longer.version):
            wrong.append("it removed a record by an outdated version")
        elif newest is not None and not store.remove(lock_id, newest):
            wrong.append("it did not remove the record")
    finally:
        forget(store, lock_id)
    return wrong


def forget(store: LeaseStore, lock_id: str) -> None:
    """Remove a record of ours, as far as that can be done; otherwise it ends by itself."""
    with contextlib.suppress(StoreUnavailable):
        left = store.read(lock_id)
        if left is not None:
            store.remove(lock_id, left.version)


def latency_of(
    store: LeaseStore,
    *,
    clock: Clock = SYSTEM_CLOCK,
    most: int = 300,
    most_seconds: float = 0.5,
) -> Latency:
    """Measure the time of one read: one round trip.

    Raises:
        StoreUnavailable: it did not answer.
    """
    lock_id = new_lock_id()
    store.read(lock_id)  # the connection is made here
    times: list[float] = []
    ends = clock.now() + most_seconds
    while len(times) < most and (clock.now() < ends or not times):
        asked_at = clock.now()
        store.read(lock_id)
        times.append(clock.now() - asked_at)
    return Latency(len(times), percentile(times, 0.5), percentile(times, 0.99))


def try_out(
    store: LeaseStore, server: str, *, clock: Clock = SYSTEM_CLOCK, patience: float
) -> list[Finding]:
    """Return the findings about a store's records and its speed.

    Args:
        store: on one server.
        server: its name, for people.
        clock: to measure by.
        patience: how long the store itself waits for a reply, in seconds.
    """
    try:
        wrong = trouble_with_records(store)
        latency = latency_of(store, clock=clock)
    except StoreUnavailable as trouble:
        return [
            Finding(
                server,
                "records",
                Verdict.WRONG,
                f"a lock could not be taken on trial: {trouble.reason}",
                facts={"survives": False},
            )
        ]
    if wrong:
        records = Finding(
            server,
            "records",
            Verdict.WRONG,
            "; ".join(wrong),
            "Something that is not this store alone answers here, or it is broken: until that is "
            "found, two can hold one lock.",
            facts={"survives": False},
        )
    else:
        records = Finding(
            server,
            "records",
            Verdict.OK,
            "a lease record was created, read, appended to, swapped and removed; changes by an "
            "outdated version were refused",
            facts={"survives": True},
        )
    return [records, judge_latency(server, latency, patience)]


def judge_latency(server: str, latency: Latency, patience: float) -> Finding:
    """Return the finding about round trips of that duration."""
    says = (
        f"a round trip takes {milliseconds(latency.p50)} (median), {milliseconds(latency.p99)} "
        f"(99 % are faster), of {latency.rounds}"
    )
    facts = {
        "p50_ms": latency.p50 * 1000,
        "p99_ms": latency.p99 * 1000,
        "round_trips": latency.rounds,
    }
    verdict, advice = Verdict.OK, ""
    if latency.p99 > patience / 2:
        verdict = Verdict.WARNING
        advice = (
            f"The store gives up after {patience:g} s: some locks will be taken on trust. "
            "Look for what is slow: the network, swapping, a busy server."
        )
    elif patience <= 1 and latency.p50 > _SLOW_MEDIAN:
        verdict = Verdict.WARNING
        advice = "A lock costs two of these; a server in the same zone answers within 1 ms."
    return Finding(server, "latency", verdict, says, advice, facts)


def milliseconds(seconds: float) -> str:
    """Return a time, for people: 0.12 ms, 3.4 ms, 120 ms."""
    ms = seconds * 1000
    digits = 2 if ms < 1 else 1 if ms < 10 else 0
    return f"{ms:,.{digits}f} ms"


def unreachable(server: str, reason: str, advice: str = "") -> Finding:
    """It does not answer, so nothing else can be found out."""
    return Finding(
        server, "reachable", Verdict.WRONG, f"it does not answer: {reason}", advice, {"up": False}
    )
