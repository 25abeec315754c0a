"""Self-test of a store: does it keep records as locks need them, and how fast is it?

Goes through the store's own five verbs on a lock that nobody else has, so it
tries the commands of acquiring and releasing, with all proxies in between.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from userlock.admin.findings import Findings, milliseconds
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.store import LeaseStore, StoreUnavailable

#: How long the record would live if the test were cut short.
_TTL_SECONDS = 5.0
#: Above this, in seconds, an uncontended lock is slow because of distance, not of load.
_SLOW_MEDIAN = 0.005


class Latency(NamedTuple):
    """Timed round trips. All times in seconds."""

    rounds: int
    p50: float
    p99: float


def new_lock_id() -> str:
    """Return a lock that nobody has."""
    return f"userlock-doctor-{secrets.token_hex(8)}"


def try_out(
    found: Findings, store: LeaseStore, *, clock: Clock = SYSTEM_CLOCK, patience: float
) -> None:
    """Add the findings about the records and the speed of a store on one server.

    `patience`: how long the store itself waits for a reply, in seconds.
    """
    try:
        faults = faults_of_records(store)
        latency = latency_of(store, clock=clock)
    except StoreUnavailable as trouble:
        says = f"a lock could not be taken for the test: {trouble.reason}"
        found.wrong("records", says, "", survives=False)
        return
    if faults:
        advice = (
            "Something that is not this store alone answers here, or it is broken: until that is "
            "found, two can hold one lock."
        )
        found.wrong("records", "; ".join(faults), advice, survives=False)
    else:
        says = (
            "a lease record was created, read, appended to, swapped and removed; changes by an "
            "outdated version were refused"
        )
        found.ok("records", says, survives=True)
    judge_latency(found, latency, patience)


def faults_of_records(store: LeaseStore) -> list[str]:
    """Return a phrase for each fault of the store; none if all is well."""
    lock_id, record, line = new_lock_id(), b'["doctor"]', b"\n+i doctor"
    faults: list[str] = []
    first = store.create(lock_id, record, _TTL_SECONDS)
    if first is None:
        return ["a record that nobody has could not be created"]
    try:
        if store.create(lock_id, b'["another"]', _TTL_SECONDS) is not None:
            faults.append("it created a record that was there already: two can have one lock")
        stored = store.read(lock_id)
        if stored is None or stored.record != record:
            faults.append("a record was not read as it had been written")
        longer = store.append(lock_id, line)
        if longer is None or longer.record != record + line:
            faults.append("a line was not appended: no caller can join the queue")
        if longer is None:
            return faults
        if store.swap(lock_id, first, b'["stale"]', _TTL_SECONDS) is not None:
            faults.append("it took a change that was decided on an outdated version")
        newest = store.swap(lock_id, longer.version, record, _TTL_SECONDS)
        if newest is None:
            faults.append("it refused a change of the version that it had just given")
        if store.remove(lock_id, longer.version):
            faults.append("it removed a record by an outdated version")
        elif newest is not None and not store.remove(lock_id, newest):
            faults.append("it did not remove the record")
    finally:
        # As far as that can be done; otherwise the record ends by itself.
        with contextlib.suppress(StoreUnavailable):
            left = store.read(lock_id)
            if left is not None:
                store.remove(lock_id, left.version)
    return faults


def latency_of(
    store: LeaseStore,
    *,
    clock: Clock = SYSTEM_CLOCK,
    most: int = 300,
    most_seconds: float = 0.5,
) -> Latency:
    """Measure the time of one read: one round trip."""
    lock_id = new_lock_id()
    store.read(lock_id)  # makes the connection
    times: list[float] = []
    ends = clock.now() + most_seconds
    while len(times) < most and (clock.now() < ends or not times):
        asked_at = clock.now()
        store.read(lock_id)
        times.append(clock.now() - asked_at)
    return Latency(len(times), _percentile(times, 0.5), _percentile(times, 0.99))


def _percentile(times: Sequence[float], fraction: float) -> float:
    """Return the time that this fraction of them does not exceed (nearest rank)."""
    return sorted(times)[max(math.ceil(fraction * len(times)) - 1, 0)]


def judge_latency(found: Findings, latency: Latency, patience: float) -> None:
    """Add the finding about round trips of that duration."""
    says = (
        f"a round trip takes {milliseconds(latency.p50)} (median), {milliseconds(latency.p99)} "
        f"(99 % are faster), of {latency.rounds}"
    )
    facts = {
        "p50_ms": latency.p50 * 1000,
        "p99_ms": latency.p99 * 1000,
        "round_trips": latency.rounds,
    }
    slow = latency.p99 > patience / 2
    advice = "A lock costs two of these; a server in the same zone answers within 1 ms."
    if slow:
        advice = (
            f"The store gives up after {patience:g} s: some locks will be degraded. "
            "Look for a slow network, swapping, or a busy server."
        )
    fine = not slow and (patience > 1 or latency.p50 <= _SLOW_MEDIAN)
    found.check("latency", fine, says, advice, **facts)
