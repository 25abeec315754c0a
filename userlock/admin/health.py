"""Examine servers: `userlock doctor`. Findings, the module of each kind of store, a self-test.

Each kind of store has a module here with the name of the store's own. Its
`list_locks(store, limit, after)` returns a `locks.Listing` of so many locks, or a few more; `after`
is where the page begins, for a kind that lists page by page. Its `examine(store)` returns the
findings about each server: it takes a few seconds, writes a record of its own under a random lock
id, and raises for no failure.

The self-test goes through the store's own five verbs on a lock that nobody else has, so it tries
the commands of acquiring and releasing, with all proxies in between.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import importlib
import itertools
import math
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from userlock.admin.command import UNREACHABLE, Invocation, argument, command, flag, plain_reason
from userlock.lock.store import LeaseStore, StoreUnavailable
from userlock.words import counted, escaped

Fact = str | float | bool | None

#: How long the record of the self-test would live if that were cut short, in seconds.
_TTL_SECONDS = 5.0
#: The reads of the self-test: at most so many, for so many seconds.
_MOST_READS, _READ_SECONDS = 300, 0.5
#: Above this, in seconds, an uncontended lock is slow because of distance, not of load.
_SLOW_MEDIAN = 0.005


class Verdict(enum.StrEnum):
    OK = "ok"
    #: It works; there is something to know, or to do before it is too late.
    WARNING = "warning"
    #: Locks do not work as they should.
    WRONG = "wrong"


OK, WARNING, WRONG = Verdict


class Finding(NamedTuple):
    """One fact about a server, with its meaning for locks."""

    server: str
    subject: str  # always the same; "reachable" for whether the server answers
    verdict: Verdict
    says: str
    advice: str = ""  # the remedy, if something should be done
    facts: Mapping[str, Fact] = MappingProxyType({})  # the same for programs


class Findings(list[Finding]):
    def __init__(self, server: str) -> None:
        super().__init__()
        self.server = server

    def add(
        self, subject: str, verdict: Verdict, says: str, advice: str = "", **facts: Fact
    ) -> None:
        """Add a finding. One that is fine needs no advice."""
        advice = "" if verdict is OK else advice
        self.append(Finding(self.server, subject, verdict, says, advice, facts))

    def check(self, subject: str, fine: bool, says: str, advice: str, **facts: Fact) -> None:
        self.add(subject, OK if fine else WARNING, says, advice, **facts)

    def reachable(self, seconds: float) -> None:
        """Add that the server answers, the first time after so many seconds."""
        says = f"it answers; the first answer took {milliseconds(seconds)}"
        self.add("reachable", OK, says, up=True)

    def unreachable(self, reason: str, advice: str) -> Findings:
        """Replace all findings by one: the server does not answer."""
        self.clear()
        self.add("reachable", WRONG, f"it does not answer: {reason}", advice, up=False)
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
    says = f"{counted(count, noun)} evicted since it was started" if count else "none"
    return f"{says}, {now:,} more while this ran" if now else says


def kind_of(store: LeaseStore) -> Any:
    """Return the module for a store; None for a third party's."""
    for parent in type(store).__mro__:
        if parent.__module__.startswith("userlock.stores."):
            name = parent.__module__.split(".")[2]
            return importlib.import_module(f"userlock.admin.{name}")
    return None


def _place(text: str) -> str:
    if re.fullmatch(r"[\w.:-]*(/[\w()-]*)?", text):
        return text
    # Not shown: it may be a URL with a password.
    raise argparse.ArgumentTypeError("expected PROJECT/DATABASE, as in my-project/(default)")


@command(
    argument(
        "--datastore",
        type=_place,
        nargs="?",
        const="",
        metavar="PROJECT/DATABASE",
        help="check Datastore instead: that of the environment, or the one named",
    ),
    flag("--quiet", "show only warnings and errors"),
    no="something is wrong (a warning is none)",
)
def doctor(options: argparse.Namespace, invocation: Invocation) -> int:
    """Check the server that keeps the locks.

    Each finding is ok, a warning (locks work, but read it) or wrong. Takes a few seconds,
    writes a record of its own and removes it. Every server of the store is checked; exit
    code 3 means that none of them answers. With --datastore, Datastore is checked, and
    --store is not needed: does it report versions, does it honour base_version, does it
    refuse stale writes that pass through the installed ndb? The JSON document has store,
    verdict and findings (server, subject, verdict, says, advice, facts).
    """
    if options.datastore is None:
        place, findings = invocation.url, examine(invocation.service().store)
    else:
        place, findings = "datastore", examine_datastore(options.datastore)
    worst = max((each.verdict for each in findings), key=list(Verdict).index, default=OK)
    facts = [{**each._asdict(), "says": plain_reason(each.says)} for each in findings]
    document = {"store": place, "verdict": worst, "findings": facts}
    lines: list[str] = []
    for server, of_server in itertools.groupby(findings, key=lambda each: each.server):
        lines.append(escaped(server))
        for each in of_server:
            if options.quiet and each.verdict is OK:
                continue
            lines.append(f"  {each.verdict:7} {each.subject:12} {plain_reason(each.says)}")
            if each.advice:
                lines.append(f"{'':23}→ {escaped(each.advice)}")
    counts = Counter(each.verdict for each in findings)
    lines.append(", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict))
    code = invocation.answer(document, *lines, no=worst is WRONG)
    servers = {each.server for each in findings}
    down = [each for each in findings if (each.subject, each.verdict) == ("reachable", WRONG)]
    return UNREACHABLE if down and {each.server for each in down} == servers else code


def examine_datastore(name: str) -> list[Finding]:
    found = Findings("datastore")
    try:
        of_ndb = importlib.import_module("userlock.admin.ndb")  # by name, as the kinds of stores
    except ImportError as error:
        if error.name is not None:
            raise  # ndb itself is missing
        advice = "Writes are not protected with this release."
        found.add("ndb", WRONG, str(error), advice, fenced=False)
        return found
    project, _, database = name.partition("/")
    found[:] = of_ndb.examine(project, "" if database == "(default)" else database)
    return found


def examine(store: LeaseStore) -> list[Finding]:
    """Return the findings about servers; of a third party's store about its records and speed."""
    kind, tried = kind_of(store), Findings(type(store).__name__)
    if kind is not None:
        return list(kind.examine(store))
    try_out(tried, store, patience=0.3)
    return tried


def new_lock_id() -> str:
    return f"userlock-doctor-{secrets.token_hex(8)}"


def try_out(
    found: Findings, store: LeaseStore, patience: float, lock_id: Callable[[], str] = new_lock_id
) -> None:
    """Add the findings about a store's records and speed on one server.

    `patience`: the store's, for a reply, in seconds. `lock_id`: returns a lock of that server.
    """
    try:
        faults = faults_of_records(store, lock_id())
        times = _round_trips(store, lock_id())
    except StoreUnavailable as trouble:
        says = f"a lock could not be taken for the test: {trouble.reason}"
        found.add("records", WRONG, says, survives=False)
        return
    says = "a lease record was created, read, appended to, swapped and removed; changes by an "
    says += "outdated version were refused"
    advice = "Something that is not this store alone answers here, or it is broken: until that is "
    advice += "found, two can hold one lock."
    says = "; ".join(faults) or says
    found.add("records", WRONG if faults else OK, says, advice, survives=not faults)
    judge_latency(found, times, patience)


def faults_of_records(store: LeaseStore, lock_id: str) -> list[str]:
    """Return a phrase for each fault of the store; none if all is well."""
    record, line = b'["doctor"]', b"\n+i doctor"
    faults: list[str] = []

    def check(fine: bool, fault: str) -> None:
        if not fine:
            faults.append(fault)

    first = store.create(lock_id, record, _TTL_SECONDS)
    if first is None:
        return ["a record that nobody has could not be created"]
    try:
        another = store.create(lock_id, b'["another"]', _TTL_SECONDS)
        check(another is None, "it created a record that was there already: two can have one lock")
        stored = store.read(lock_id)
        right = stored is not None and stored.record == record
        check(right, "a record was not read as it had been written")
        longer = store.append(lock_id, line)
        right = longer is not None and longer.record == record + line
        check(right, "a line was not appended: no caller can join the queue")
        if longer is None:
            return faults
        stale = store.swap(lock_id, first, b'["stale"]', _TTL_SECONDS)
        check(stale is None, "it took a change that was decided on an outdated version")
        newest = store.swap(lock_id, longer.version, record, _TTL_SECONDS)
        check(newest is not None, "it refused a change of the version that it had just given")
        if store.remove(lock_id, longer.version):
            faults.append("it removed a record by an outdated version")
        elif newest is not None:
            check(store.remove(lock_id, newest), "it did not remove the record")
    finally:
        # As far as that can be done; otherwise the record ends by itself.
        with contextlib.suppress(StoreUnavailable):
            if (left := store.read(lock_id)) is not None:
                store.remove(lock_id, left.version)
    return faults


def _round_trips(store: LeaseStore, lock_id: str) -> list[float]:
    """Return the durations of reads, which are one round trip each, the shortest first."""
    store.read(lock_id)  # makes the connection
    times: list[float] = []
    ends = time.monotonic() + _READ_SECONDS
    while len(times) < _MOST_READS and (time.monotonic() < ends or not times):
        asked_at = time.monotonic()
        store.read(lock_id)
        times.append(time.monotonic() - asked_at)
    return sorted(times)


def judge_latency(found: Findings, times: list[float], patience: float) -> None:
    # Nearest rank.
    p50, p99 = (times[math.ceil(part * len(times)) - 1] for part in (0.5, 0.99))
    says = f"a round trip takes {milliseconds(p50)} (median), {milliseconds(p99)} "
    says += f"(99 % are faster), of {len(times)}"
    advice = "A lock costs two of these; a server in the same zone answers within 1 ms."
    fine = patience > 1 or p50 <= _SLOW_MEDIAN
    if p99 > patience / 2:
        fine = False
        advice = (
            f"The store gives up after {patience:g} s: some locks will be degraded. "
            "Look for a slow network, swapping, or a busy server."
        )
    facts = {"p50_ms": p50 * 1000, "p99_ms": p99 * 1000, "round_trips": len(times)}
    found.check("latency", fine, says, advice, **facts)
