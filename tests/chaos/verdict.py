"""All that is checked at the end of a trial, put together."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.chaos import writes
from tests.chaos.findings import Finding, Kind
from tests.chaos.harms import CLOCK_SET, LOSSES, STOPS, TROUBLES
from tests.chaos.history import Asked, Facts, History, Span
from tests.chaos.meetings import meetings
from tests.chaos.record import Outcome, Stored
from tests.chaos.tenures import Exclusion
from tests.chaos.waits import Waits

#: Beside the faults: what the programs themselves do to locks.
_LOST_BY_PROGRAMS = frozenset({"broken", "flushed"})
#: After these the store answers as before.
_HARMLESS_TO_STORES = _LOST_BY_PROGRAMS | {CLOCK_SET}
#: For so long after a fault things are put in order again: breakers, lines of waiters. In seconds.
_SETTLES_SECONDS = 1.5
#: Connections that a process may have: those of the lease store, and two a thread for ndb's cache.
_MOST_CONNECTIONS = 32 + 8
#: Files that may be open at the end beside those that were open at the beginning: of gRPC.
_MORE_FILES = 4
#: Threads that may stay until a process ends: the one that runs it, and the renewal thread.
_MOST_THREADS = 2
#: By how much a process may grow after its first third: memory in bytes, and objects.
_MOST_GROWTH = 48 << 20
_MOST_OBJECTS = 40_000


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a history says.

    Attributes:
        findings: what is wrong.
        overlaps: how many tenures met that may, by what explains it.
        figures: how much there was to be checked, by name.
        met: what the faults met, by name: a fault that meets nothing proves nothing.
    """

    findings: list[Finding]
    overlaps: Counter[str]
    figures: Mapping[str, float]
    met: Counter[str]

    def found(self, kind: Kind) -> list[Finding]:
        """What is wrong in that way."""
        return [finding for finding in self.findings if finding.kind is kind]


def judge(
    history: History, stored: Mapping[str, Stored], single: Sequence[str], members: list[Finding]
) -> Verdict:
    """Check everything.

    Args:
        history: what was noted.
        stored: the counters that are there at the end, by name.
        single: the writes of the entries that are there.
        members: what was wrong with processes at their end.
    """
    losses = [each for each in history.spans if each.kind in LOSSES | _LOST_BY_PROGRAMS]
    troubles = [
        dataclasses.replace(each, ended=each.ended + _SETTLES_SECONDS)
        for each in history.spans
        if each.kind in LOSSES | _LOST_BY_PROGRAMS | TROUBLES
    ]
    stops = [each for each in history.spans if each.kind in STOPS]
    exclusion = Exclusion(history, losses)
    waits = Waits(list(history.attempts.values()), troubles, stops)
    compared = writes.check(list(history.writes.values()), stored, single)
    findings = [
        *members,
        *compared.findings,
        *exclusion.findings(),
        *waits.findings(),
        *leaks(history.gauges),
    ]
    told = Counter(write.outcome for write in history.writes.values())
    figures = {
        "operations": history.operations.total(),
        "writes": len(history.writes),
        **{f"writes {outcome.value}": told[outcome] for outcome in Outcome},
        **{f"of the unknown: {what}": n for what, n in compared.in_doubt.most_common()},
        "locks taken": len(history.tenures),
        "taken without the store's word": sum(a.degraded for a in history.tenures.values()),
        "without its word, and nothing was wrong": unprovoked(
            history.attempts.values(),
            [*stops, *(each for each in troubles if each.kind not in _HARMLESS_TO_STORES)],
        ),
        "hand-overs checked for exclusion": exclusion.compared,
        "reads compared with earlier writes": exclusion.looked_at,
        "waits checked for order": waits.looked_at,
        "longest told after its time-out, s": round(waits.longest, 3),
    }
    return Verdict(findings, exclusion.explained, figures, history.met + meetings(history, losses))


def unprovoked(attempts: Iterable[Asked], faults: Sequence[Span]) -> int:
    """How many went without the store's word although there had been no fault for a while.

    One that is not told of may be there all the same, on a busy machine; so it is no finding.

    Args:
        attempts: at all locks.
        faults: when the store was hard to reach, or a process stood still.
    """
    return sum(
        not any(
            fault.who in (None, asked.who) and fault.meets(asked.began - _SETTLES_SECONDS, ended)
            for fault in faults
        )
        for asked in attempts
        if (asked.degraded or asked.error == "LockServiceUnavailable")
        and (ended := asked.ended) is not None
    )


def leaks(gauges: Sequence[Facts]) -> Iterator[Finding]:
    """What processes have kept that they need not."""
    at_first: dict[str, Facts] = {}
    warm: dict[str, Facts] = {}
    for gauge in gauges:
        who, when = gauge["who"], gauge["when"]
        at_first.setdefault(who, gauge)
        if when == "warm":
            warm[who] = gauge
        if gauge["connections"] > _MOST_CONNECTIONS:
            yield _leak(gauge, f"{gauge['connections']} connections")
        if when != "after":
            continue
        if gauge["connections"]:
            yield _leak(gauge, f"{gauge['connections']} connections are left")
        if gauge["threads"] > _MOST_THREADS:
            yield _leak(gauge, f"{gauge['threads']} threads are left")
        if gauge["files"] > at_first[who]["files"] + _MORE_FILES:
            yield _leak(gauge, f"{gauge['files']} files, after {at_first[who]['files']}")
        for what, most in (("resident", _MOST_GROWTH), ("objects", _MOST_OBJECTS)):
            grown = gauge[what] - warm.get(who, gauge)[what]
            if grown > most:
                yield _leak(gauge, f"{what} has grown by {grown}")


def _leak(gauge: Facts, detail: str) -> Finding:
    return Finding(Kind.LEAK, gauge["who"], detail, at=gauge["at"])


def faults(history: History) -> Counter[str]:
    """How often what went wrong, of all that lasts a while."""
    return Counter(span.kind for span in history.spans)


def lasting(spans: Sequence[Span], kinds: frozenset[str]) -> float:
    """For how long altogether something of these kinds went on, in seconds."""
    return sum(span.ended - span.began for span in spans if span.kind in kinds)
