"""All checks at the end of a run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.chaos import runs, writes
from tests.chaos.answers import check_answers
from tests.chaos.findings import Finding, Kind
from tests.chaos.harms import CLOCK_SET, STOPS
from tests.chaos.history import Asked, Facts, History, Span
from tests.chaos.meetings import meetings
from tests.chaos.record import Outcome, Stored, StoredJobs, StoredTrees
from tests.chaos.stores import StoreKind
from tests.chaos.tenures import Exclusion
from tests.chaos.trees import Trees
from tests.chaos.waits import Waits

_BROKEN = "broken"
#: Losses of locks by the programs themselves, beside the faults.
_LOST_BY_PROGRAMS = frozenset({_BROKEN, "flushed"})
#: After these the store answers as before.
_HARMLESS_TO_STORES = _LOST_BY_PROGRAMS | {CLOCK_SET}
#: The time after a fault until breakers and queues have recovered, in seconds.
_SETTLES_SECONDS = 1.5
#: The allowed connections of a process: those of the lease store, and two per thread for ndb's
#: cache.
_MOST_CONNECTIONS = 32 + 8
#: The number of additional open files allowed at the end, compared with the beginning: gRPC's.
_MORE_FILES = 4
#: The allowed threads at the end of a process: the main thread and the renewal thread.
_MOST_THREADS = 2
#: The allowed growth of a process after its first third: memory in bytes, and objects.
_MOST_GROWTH = 48 << 20
_MOST_OBJECTS = 40_000


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of all checks.

    Attributes:
        overlaps: number of legitimate overlaps of tenures, by their explanation.
        figures: amounts of checked data, by name.
        met: the effects of the faults, by name: a fault without an effect proves nothing.
    """

    findings: list[Finding]
    overlaps: Counter[str]
    figures: Mapping[str, float]
    met: Counter[str]

    def found(self, kind: Kind) -> list[Finding]:
        """Return the errors of that kind."""
        return [finding for finding in self.findings if finding.kind is kind]


def judge(
    history: History,
    stored: Mapping[str, Stored],
    single: Sequence[str],
    jobs: StoredJobs,
    trees: StoredTrees,
    strays: Sequence[tuple[str, str]],
    unfinished: Sequence[str],
    members: list[Finding],
    kind: StoreKind,
) -> Verdict:
    """Run all checks.

    Args:
        single: the writes of the entries at the end.
        strays: the writes in another namespace than their operation's at the end, and where.
        members: errors of processes at their end.
    """
    losses = [each for each in history.spans if each.kind in kind.loses | _LOST_BY_PROGRAMS]
    troubles = [
        dataclasses.replace(each, ended=each.ended + _SETTLES_SECONDS)
        for each in history.spans
        if each.kind in kind.loses | _LOST_BY_PROGRAMS | kind.troubles
    ]
    stops = [each for each in history.spans if each.kind in STOPS]
    exclusion = Exclusion(history, losses, [each for each in losses if each.kind == _BROKEN])
    waits = Waits(list(history.attempts.values()), troubles, stops, kind.late_seconds)
    checked = runs.Runs(history, jobs)
    grown = Trees(history, trees)
    compared = writes.check(checked.writes, stored, [*single, *checked.landed, *grown.landed])
    findings = [
        *members,
        *compared.findings,
        *exclusion.findings(),
        *waits.findings(),
        *checked.findings(),
        *grown.findings(),
        *check_answers(history, single, unfinished),
        *(Finding(Kind.STRAY, each, where) for each, where in (*history.strays, *strays)),
        *leaks(history.gauges),
    ]
    reported = Counter(write.outcome for write in history.writes.values())
    figures = {
        "operations": history.operations.total(),
        "writes": len(history.writes),
        **{f"writes {outcome.value}": reported[outcome] for outcome in Outcome},
        **{f"unknown writes: {what}": n for what, n in compared.in_doubt.most_common()},
        "locks taken": len(history.tenures),
        "degraded leases": sum(a.degraded for a in history.tenures.values()),
        "degraded leases without a fault": unprovoked(
            history.attempts.values(),
            [*stops, *(each for each in troubles if each.kind not in _HARMLESS_TO_STORES)],
        ),
        "hand-overs checked for exclusion": exclusion.compared,
        "hand-overs in the fallback store": exclusion.compared_backed,
        "reads compared with earlier writes": exclusion.compared_reads,
        "waits checked for order": waits.checked,
        **checked.figures,
        **grown.figures,
        **{f"requests: {outcome}": n for outcome, n in sorted(history.requests.items())},
        "processes with releases still pending": sum(g["pending"] for g in history.gauges),
        "longest delay after a timeout, s": round(waits.longest, 3),
    }
    return Verdict(findings, exclusion.explained, figures, history.met + meetings(history, losses))


def unprovoked(attempts: Iterable[Asked], faults: Sequence[Span]) -> int:
    """Count the degraded leases without any recent fault.

    On a busy machine there may be an unrecorded cause, so they are no findings.

    Args:
        faults: times at which the store was hard to reach, or a process was stopped.
    """
    return sum(
        not any(
            fault.who in (None, asked.who)
            and fault.affects(asked.lock_id)
            and fault.meets(asked.began - _SETTLES_SECONDS, ended)
            for fault in faults
        )
        for asked in attempts
        if (asked.degraded or asked.error == "LockServiceUnavailable")
        and (ended := asked.ended) is not None
    )


def leaks(gauges: Sequence[Facts]) -> Iterator[Finding]:
    """Yield resources that processes have kept without need."""
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
            yield _leak(gauge, f"{gauge['connections']} open connections remain")
        if gauge["threads"] > _MOST_THREADS:
            yield _leak(gauge, f"{gauge['threads']} threads remain")
        if gauge["files"] > at_first[who]["files"] + _MORE_FILES:
            yield _leak(gauge, f"{gauge['files']} files, after {at_first[who]['files']}")
        for what, most in (("resident", _MOST_GROWTH), ("objects", _MOST_OBJECTS)):
            grown = gauge[what] - warm.get(who, gauge)[what]
            if grown > most:
                yield _leak(gauge, f"{what} grew by {grown}")


def _leak(gauge: Facts, detail: str) -> Finding:
    return Finding(Kind.LEAK, gauge["who"], detail, at=gauge["at"])


def faults(history: History) -> Counter[str]:
    """Count the faults that have a duration, by kind."""
    return Counter(span.kind for span in history.spans)


def lasting(spans: Sequence[Span], kinds: frozenset[str]) -> float:
    """Return the total duration of events of these kinds, in seconds."""
    return sum(span.ended - span.began for span in spans if span.kind in kinds)
