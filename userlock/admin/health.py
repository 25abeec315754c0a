"""Health of servers: findings, for each kind of store the module that examines it, a self-test.

The module of a kind lists the locks of its stores too. It has the name of the store's module.
The self-test goes through the store's own five verbs on a lock that nobody else has, so it
tries the commands of acquiring and releasing, with all proxies in between.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import math
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, cast

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.store import LeaseStore, Stored, StoreUnavailable
from userlock.words import counted

Fact = str | float | bool | None

#: How long a third party's store is taken to wait for a reply, in seconds.
_USUAL_PATIENCE = 0.3
#: How long the record of the self-test would live if that were cut short, in seconds.
_TTL_SECONDS = 5.0
#: Above this, in seconds, an uncontended lock is slow because of distance, not of load.
_SLOW_MEDIAN = 0.005
#: The most bytes of all records in one listing. Parsed, they take a multiple of it.
MOST_LISTED_BYTES = 8 << 20
NO_ROOM = f"the records have more than {MOST_LISTED_BYTES >> 20} MB; long ones are missing"


# --- findings -----------------------------------------------------------------------------------


class Verdict(enum.Enum):
    """The severity of a finding."""

    OK = "ok"
    #: It works; there is something to know, or to do before it is too late.
    WARNING = "warning"
    #: Locks do not work as they should.
    WRONG = "wrong"


class Finding(NamedTuple):
    """One fact about a server, with its meaning for locks.

    Attributes:
        server: its name.
        subject: one or two words, always the same; "reachable" for whether the server answers.
        verdict: the severity.
        says: the observation, in plain words.
        advice: the remedy, if something should be done.
        facts: the same for programs.
    """

    server: str
    subject: str
    verdict: Verdict
    says: str
    advice: str = ""
    facts: Mapping[str, Fact] = MappingProxyType({})


class Findings(list[Finding]):
    """The findings about one server, in the order of their discovery."""

    def __init__(self, server: str) -> None:
        super().__init__()
        self.server = server

    def ok(self, subject: str, says: str, **facts: Fact) -> None:
        """Add a fact that is fine."""
        self.append(Finding(self.server, subject, Verdict.OK, says, "", facts))

    def warning(self, subject: str, says: str, advice: str, **facts: Fact) -> None:
        """Add a warning."""
        self.append(Finding(self.server, subject, Verdict.WARNING, says, advice, facts))

    def wrong(self, subject: str, says: str, advice: str, **facts: Fact) -> None:
        """Add a fault."""
        self.append(Finding(self.server, subject, Verdict.WRONG, says, advice, facts))

    def check(self, subject: str, fine: bool, says: str, advice: str, **facts: Fact) -> None:
        """Add a fact that is fine, or else a warning."""
        if fine:
            self.ok(subject, says, **facts)
        else:
            self.warning(subject, says, advice, **facts)

    def reachable(self, seconds: float) -> None:
        """Add that the server answers, the first time after so many seconds."""
        self.ok("reachable", f"it answers; the first answer took {milliseconds(seconds)}", up=True)

    def unreachable(self, reason: str, advice: str) -> Findings:
        """Take that the server does not answer, so nothing else is known, for the only finding."""
        self.clear()
        self.wrong("reachable", f"it does not answer: {reason}", advice, up=False)
        return self


def milliseconds(seconds: float) -> str:
    """Return a time for messages: 0.12 ms, 3.4 ms, 120 ms."""
    ms = seconds * 1000
    digits = 2 if ms < 1 else 1 if ms < 10 else 0
    return f"{ms:,.{digits}f} ms"


def number_in(answers: Mapping[str, str], name: str) -> int | None:
    """Return a number of a server's statistics; None if it gives none."""
    text = answers.get(name, "")
    return int(text) if re.fullmatch("[0-9]{1,20}", text) else None


def evicted(noun: str, count: int, now: int) -> str:
    """Return in words how much a server has evicted, and how much of it while this ran."""
    says = f"{counted(count, noun)} evicted since it was started" if count else "none"
    return f"{says}, {now:,} more while this ran" if now else says


# --- kinds of stores ----------------------------------------------------------------------------


class Listed(NamedTuple):
    """A lock that has a record, as its store lists it."""

    name: str  # its id; where the store keeps only its hash, `sha256:` and the hash
    hashed: bool
    stored: Stored

    @classmethod
    def of(cls, name: str, hashed: bool, stored: Stored) -> Listed:
        """Return the lock of that id, or of that hash of one."""
        return cls(f"sha256:{name}" if hashed else name, hashed, stored)


class Listing(NamedTuple):
    """The locks of a store that have a record, each once, in no order."""

    locks: list[Listed]
    #: Why there may be more of them; empty if there are not.
    note: str = ""
    #: Where the next page begins, of a store that lists page by page.
    more: str = ""

    @classmethod
    def within_room(
        cls, found: Iterable[Listed], note: str = "", *, shortest_first: bool = True
    ) -> Listing:
        """Take the locks for which there is room: forged records must not fill the memory."""
        locks: list[Listed] = []
        left = MOST_LISTED_BYTES
        for each in found:
            if len(each.stored.record) <= left:
                left -= len(each.stored.record)
                locks.append(each)
                continue
            note = NO_ROOM
            if shortest_first:
                break  # before the longer ones are read
        return cls(locks, note)


class Kind(Protocol):
    """The functions of such a module, for its kind of store."""

    #: So many locks of a store, or a few more. Costs it some work. Raises `StoreUnavailable`. With
    #: `more` of a page as the third argument, the next one.
    list_locks: Callable[..., Listing]
    #: The findings about each server. Takes a few seconds; raises for no failure. Writes a record
    #: of its own, under a random lock id, and removes it.
    examine: Callable[[Any], list[Finding]]


def kind_of(store: LeaseStore) -> Kind | None:
    """Return the module for a store; None for a third party's."""
    for parent in type(store).__mro__:
        if parent.__module__.startswith("userlock.stores."):
            name = parent.__module__.split(".")[2]
            return cast(Kind, importlib.import_module(f"userlock.admin.{name}"))
    return None


def examine(store: LeaseStore) -> list[Finding]:
    """Return the findings about a store's servers. Of a third party's, only its records and its
    speed are tried."""
    kind = kind_of(store)
    if kind is not None:
        return kind.examine(store)
    found = Findings(type(store).__name__)
    try_out(found, store, patience=_USUAL_PATIENCE)
    return found


# --- self-test ----------------------------------------------------------------------------------


def new_lock_id() -> str:
    """Return a lock that nobody has."""
    return f"userlock-doctor-{secrets.token_hex(8)}"


def try_out(
    found: Findings,
    store: LeaseStore,
    *,
    clock: Clock = SYSTEM_CLOCK,
    patience: float,
    lock_id: Callable[[], str] = new_lock_id,
) -> None:
    """Add the findings about the records and the speed of a store on one server.

    `patience`: how long the store itself waits for a reply, in seconds. `lock_id`: returns a lock
    of that server that nobody has.
    """
    try:
        faults = faults_of_records(store, lock_id())
        times = round_trips(store, lock_id(), clock=clock)
    except StoreUnavailable as trouble:
        says = f"a lock could not be taken for the test: {trouble.reason}"
        found.wrong("records", says, "", survives=False)
        return
    says = (
        "a lease record was created, read, appended to, swapped and removed; changes by an "
        "outdated version were refused"
    )
    advice = (
        "Something that is not this store alone answers here, or it is broken: until that is "
        "found, two can hold one lock."
    )
    if faults:
        found.wrong("records", "; ".join(faults), advice, survives=False)
    else:
        found.ok("records", says, survives=True)
    judge_latency(found, times, patience)


def faults_of_records(store: LeaseStore, lock_id: str) -> list[str]:
    """Return a phrase for each fault of the store; none if all is well."""
    record, line = b'["doctor"]', b"\n+i doctor"
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


def round_trips(
    store: LeaseStore,
    lock_id: str,
    *,
    clock: Clock = SYSTEM_CLOCK,
    most: int = 300,
    most_seconds: float = 0.5,
) -> list[float]:
    """Return the durations of reads, which are one round trip each, the shortest first."""
    store.read(lock_id)  # makes the connection
    times: list[float] = []
    ends = clock.now() + most_seconds
    while len(times) < most and (clock.now() < ends or not times):
        asked_at = clock.now()
        store.read(lock_id)
        times.append(clock.now() - asked_at)
    return sorted(times)


def judge_latency(found: Findings, times: list[float], patience: float) -> None:
    """Add the finding about round trips of these durations, the shortest first."""
    # Nearest rank.
    p50, p99 = (times[math.ceil(part * len(times)) - 1] for part in (0.5, 0.99))
    says = f"a round trip takes {milliseconds(p50)} (median), {milliseconds(p99)} "
    says += f"(99 % are faster), of {len(times)}"
    facts = {"p50_ms": p50 * 1000, "p99_ms": p99 * 1000, "round_trips": len(times)}
    slow = p99 > patience / 2
    advice = "A lock costs two of these; a server in the same zone answers within 1 ms."
    if slow:
        advice = (
            f"The store gives up after {patience:g} s: some locks will be degraded. "
            "Look for a slow network, swapping, or a busy server."
        )
    fine = not slow and (patience > 1 or p50 <= _SLOW_MEDIAN)
    found.check("latency", fine, says, advice, **facts)
