"""Examine servers: `userlock doctor`. Findings, the module of each kind of store, a self-test.

A kind of store may have a module here with the name of the store's own. Its
`list_locks(store, limit)` returns a `locks.Listing` of so many locks, or a few more. Its
`examine(store)` returns the findings about each server: it takes a few seconds, writes a record of
its own under a random lock id, and raises for no failure.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from userlock.admin.command import UNREACHABLE, Invocation, argument, command, flag, plain_reason
from userlock.lock.store import LeaseStore, StoreUnavailable
from userlock.words import escaped

#: The kinds of stores with a module here.
_KINDS = ("memcache", "redis", "datastore", "memory")
_RECORD = b'["doctor"]'
#: How long the record of the self-test would live if that were cut short, in seconds.
_TTL_SECONDS = 5.0
#: A lease that is watched, when it should have ended (memcached counts whole seconds), and how
#: often it is looked at, in seconds.
_LEASE_SECONDS, _MOST_LIFE, _POLL_SECONDS = 0.1, 4.0, 0.01
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
#: A finding without its server.
Check = tuple[str, Verdict, str, str]


class Finding(NamedTuple):
    """One fact about a server, with its meaning for locks."""

    server: str
    subject: str  # always the same; "reachable" for whether the server answers
    verdict: Verdict
    says: str
    advice: str = ""  # the remedy, if something should be done


def findings(server: str, checks: Iterable[Check]) -> list[Finding]:
    """Return the findings about a server. One that is fine needs no advice."""
    return [
        Finding(server, subject, verdict, says, "" if verdict is OK else advice)
        for subject, verdict, says, advice in checks
    ]


def number_in(answers: Mapping[str, str], name: str) -> int | None:
    """Return a number of a server's statistics; None if it gives none."""
    text = answers.get(name, "")
    return int(text) if re.fullmatch("[0-9]{1,20}", text) else None


def kind_of(store: LeaseStore) -> Any:
    """Return the module for a store; None if its kind has none."""
    for parent in type(store).__mro__:
        name = parent.__module__.removeprefix("userlock.stores.").partition(".")[0]
        if parent.__module__.startswith("userlock.stores.") and name in _KINDS:
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
    verdict and findings (server, subject, verdict, says, advice).
    """
    if options.datastore is None:
        place, found = invocation.url, examine(invocation.service().store)
    else:
        place, found = "datastore", examine_datastore(options.datastore)
    found = [each._replace(says=plain_reason(each.says)) for each in found]
    worst = max((each.verdict for each in found), key=list(Verdict).index, default=OK)
    facts = [each._asdict() for each in found]
    document = {"store": place, "verdict": worst, "findings": facts}
    lines: list[str] = []
    for server, of_server in itertools.groupby(found, key=lambda each: each.server):
        lines.append(escaped(server))
        for each in of_server:
            if options.quiet and each.verdict is OK:
                continue
            lines.append(f"  {each.verdict:7} {each.subject:12} {each.says}")
            if each.advice:
                lines.append(f"{'':23}→ {escaped(each.advice)}")
    counts = Counter(each.verdict for each in found)
    lines.append(", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict))
    code = invocation.answer(document, *lines, no=worst is WRONG)
    down = {each.server for each in found if each[1:3] == ("reachable", WRONG)}
    return UNREACHABLE if down and down == {each.server for each in found} else code


def examine_datastore(name: str) -> list[Finding]:
    try:
        of_ndb = importlib.import_module("userlock.admin.ndb")  # by name, as the kinds of stores
    except ImportError as error:
        if error.name is not None:
            raise  # ndb itself is missing
        advice = "Writes are not protected with this release."
        return findings("datastore", [("ndb", WRONG, str(error), advice)])
    project, _, database = name.partition("/")
    return list(of_ndb.examine(project, "" if database == "(default)" else database))


def examine(store: LeaseStore) -> list[Finding]:
    """Return the findings about servers; of a store without a module from the self-test alone."""
    kind = kind_of(store)
    if hasattr(kind, "examine"):
        return list(kind.examine(store))

    def ask() -> list[Check]:
        store.read(new_lock_id())
        return []

    return examine_server(type(store).__name__, store, ask)


def new_lock_id() -> str:
    return f"userlock-doctor-{secrets.token_hex(8)}"


def examine_server(
    server: str,
    store: LeaseStore,
    ask: Callable[[], Iterable[Check]],
    advice: str = "",
    patience: float = 0.3,
    lock_id: str = "",
) -> list[Finding]:
    """Return the findings about one server of a store, which may have a certain lock.

    `ask` asks it about itself; `advice` is for one that does not answer. `patience`: the store's,
    for a reply, in seconds.
    """
    lock_id = lock_id or new_lock_id()
    try:
        checks = [("reachable", OK, "it answers", ""), *ask()]
    except StoreUnavailable as trouble:
        return unreachable(server, trouble, advice)
    try:
        checks += list(_try_out(store, lock_id, patience))
    except StoreUnavailable as trouble:
        says = f"a lock could not be taken for the test: {_without_name(trouble, server)}"
        checks.append(("records", WRONG, says, "Has it memory left, and the user all rights?"))
    finally:
        # As far as that can be done; otherwise the record ends by itself.
        with contextlib.suppress(StoreUnavailable):
            if (left := store.read(lock_id)) is not None:
                store.remove(lock_id, left.version)
    return findings(server, checks)


def unreachable(server: str, trouble: StoreUnavailable, advice: str) -> list[Finding]:
    says = f"it gives no usable answer: {_without_name(trouble, server)}"
    return findings(server, [("reachable", WRONG, says, advice)])


def _without_name(trouble: StoreUnavailable, server: str) -> str:
    return trouble.reason.removeprefix(f"{server}: ")


def _try_out(store: LeaseStore, lock_id: str, patience: float) -> Iterator[Check]:
    """Check a store's records, its clock and its speed."""
    faults = list(_faults(store, lock_id))
    says = "a lease record was created, read, appended to, swapped and removed; changes by an "
    says += "outdated version were refused"
    advice = "Something that is not this store alone answers here, or it is broken: until that is "
    advice += "found, two can hold one lock."
    yield "records", WRONG if faults else OK, "; ".join(faults) or says, advice
    if faults:
        return
    life = _life(store, lock_id)
    early, late = life < _LEASE_SECONDS / 2, life >= _MOST_LIFE
    says = f"a lease of {_LEASE_SECONDS:g} s had {'not ' if late else ''}ended after {life:.1f} s"
    says += "" if early else f" (up to {_MOST_LIFE:g} s are fine)"
    advice = "A crashed holder's lock is freed late. Is the server paused or overloaded?"
    if early:
        advice = "Two can hold one lock: its clock jumps, or it evicts leases."
    yield "clock", WRONG if early else WARNING if late else OK, says, advice
    yield judge_latency(_round_trips(store, lock_id), patience)


def _faults(store: LeaseStore, lock_id: str) -> Iterator[str]:
    """Return a phrase for each fault of the store; none if all is well."""
    line = b"\n+i doctor"
    first = store.create(lock_id, _RECORD, _TTL_SECONDS)
    if first is None:
        yield "a record that nobody has could not be created"
        return
    if store.create(lock_id, b'["another"]', _TTL_SECONDS) is not None:
        yield "it created a record that was there already: two can have one lock"
    stored = store.read(lock_id)
    if stored is None or stored.record != _RECORD:
        yield "a record was not read as it had been written"
    longer = store.append(lock_id, line)
    if longer is None or longer.record != _RECORD + line:
        yield "a line was not appended: no caller can join the queue"
    if longer is None:
        return
    if store.swap(lock_id, first, b'["stale"]', _TTL_SECONDS) is not None:
        yield "it took a change that was decided on an outdated version"
    newest = store.swap(lock_id, longer.version, _RECORD, _TTL_SECONDS)
    if newest is None:
        yield "it refused a change of the version that it had just given"
    if store.remove(lock_id, longer.version):
        yield "it removed a record by an outdated version"
    elif newest is not None and not store.remove(lock_id, newest):
        yield "it did not remove the record"


def _life(store: LeaseStore, lock_id: str) -> float:
    """Return how long a short lease lives, in seconds; at most for so long as it is watched."""
    began = time.monotonic()
    store.create(lock_id, _RECORD, _LEASE_SECONDS)
    while (life := time.monotonic() - began) < _MOST_LIFE:
        stored = store.read(lock_id)
        if stored is None or stored.lapsed:
            break
        time.sleep(_POLL_SECONDS)
    return life


def _round_trips(store: LeaseStore, lock_id: str) -> list[float]:
    """Return the durations of reads, which are one round trip each, the shortest first."""
    times: list[float] = []
    while len(times) < _MOST_READS and sum(times) < _READ_SECONDS:
        asked_at = time.monotonic()
        store.read(lock_id)
        times.append(time.monotonic() - asked_at)
    return sorted(times)


def judge_latency(times: list[float], patience: float) -> Check:
    # Nearest rank.
    p50, p99 = (times[math.ceil(part * len(times)) - 1] for part in (0.5, 0.99))
    says = f"a round trip takes {p50 * 1000:.2f} ms (median), {p99 * 1000:.2f} ms (99 % are faster)"
    advice = "A lock costs two of these; a server in the same zone answers within 1 ms. "
    advice += f"The store gives up after {patience:g} s: then locks are degraded. "
    advice += "Look for a slow network, swapping, or a busy server."
    slow = p99 > patience / 2 or (patience <= 1 and p50 > _SLOW_MEDIAN)
    return "latency", WARNING if slow else OK, says, advice
