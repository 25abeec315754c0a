"""Each checker of a chaos run finds the violations that are planted here, and nothing else.

One table per checker: a history, and the findings. The first rows are clean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.answers import check_answers
from tests.chaos.findings import Finding, Kind
from tests.chaos.harms import CLOCK_SET
from tests.chaos.history import Asked, Felling, History, LockedRead, Run, Span, Staging
from tests.chaos.jobs import ATTEMPTS, CLAIM_SECONDS, FEW_ATTEMPTS, FOR_EVER
from tests.chaos.record import Outcome, Stored, StoredJobs, StoredTrees, Write
from tests.chaos.runs import Runs
from tests.chaos.tenures import Exclusion
from tests.chaos.trees import Trees
from tests.chaos.verdict import leaks
from tests.chaos.waits import Waits
from tests.chaos.writes import check

ACCEPTED, REFUSED, UNKNOWN = Outcome.ACCEPTED, Outcome.REFUSED, Outcome.UNKNOWN

Found = dict[Kind, list[str]]


def by_kind(*groups: Sequence[Finding]) -> Found:
    found: Found = {}
    for each in (finding for group in groups for finding in group):
        found.setdefault(each.kind, []).append(each.about)
    return found


# --- writes -------------------------------------------------------------------------------------


def put(name: str, before: str | None, outcome: Outcome = ACCEPTED, **more: Any) -> Write:
    reported = None if outcome is UNKNOWN else 1.0
    facts: dict[str, Any] = {"operation": f"of {name}", "entity": "e", "reported": reported, **more}
    return Write(id=name, before=before, outcome=outcome, **facts)


def delete(name: str, before: str, outcome: Outcome = ACCEPTED, **more: Any) -> Write:
    facts: dict[str, Any] = {"reported": None, "made": 2.0, "deletes": True, **more}
    return put(name, before, outcome, **facts)


def entry(name: str, outcome: Outcome = ACCEPTED, **more: Any) -> Write:
    return put(name, None, outcome, entity=None, **more)


A, AB = put("a", None), [put("a", None), put("b", "a")]
ABC = [*AB, put("c", "b")]
GONE = [*AB, delete("d", "b")]
#: In one transaction: both entities and an entry.
TOGETHER = [
    *(A, put("f", None, entity="f")),
    put("a2", "a", UNKNOWN, together="1", operation="o"),
    put("f2", "f", UNKNOWN, entity="f", together="1", operation="o"),
    entry("g", UNKNOWN, together="1"),
]
TWICE = [
    put("a", None, REFUSED, together="1", operation="o"),
    put("b", "a", together="2", operation="o"),
]


@pytest.mark.parametrize(
    ("writes", "last", "single", "expected"),
    [
        pytest.param(ABC, ("c", 3), [], {}, id="a-chain"),
        pytest.param([*ABC, put("x", "b", REFUSED)], ("c", 3), [], {}, id="refused"),
        pytest.param([*ABC, put("d", "c", UNKNOWN)], ("d", 4), [], {}, id="unknown-landed"),
        pytest.param(
            [*ABC, put("d", "c", UNKNOWN), put("f", "d")], ("f", 5), [], {}, id="built-on"
        ),
        pytest.param([*GONE, put("f", None)], ("f", 1), [], {}, id="deleted-and-created"),
        pytest.param([*AB, delete("d", "b", UNKNOWN)], None, [], {}, id="unknown-deletion-landed"),
        pytest.param(
            [*GONE, delete("late", "a", reported=3.0)], None, [], {}, id="late-deletion-of-nothing"
        ),
        pytest.param(
            [*GONE, put("x", "a")], ("x", 2), [], {Kind.FORKED: ["a"]}, id="put-after-a-deletion"
        ),
        pytest.param(
            [replace(A, reported=3.0), *GONE[1:], put("x", "a")],
            ("x", 2),
            [],
            {},
            id="a-creation-that-was-retried-after-its-deletion",
        ),
        pytest.param(
            [*GONE, delete("late", "a", reported=1.0)],
            None,
            [],
            {Kind.FORKED: ["a"]},
            id="a-deletion-reported-before-it-was-gone",
        ),
        pytest.param(
            [*AB, put("c", "a")],
            ("c", 2),
            [],
            {Kind.FORKED: ["a"], Kind.LOST: ["b"]},
            id="overwritten",
        ),
        pytest.param(ABC, ("b", 2), [], {Kind.LOST: ["c"]}, id="an-old-state-came-back"),
        pytest.param(
            [A, delete("d", "a", REFUSED)], None, [], {Kind.LOST: ["a"]}, id="refused-deletion"
        ),
        pytest.param(
            [*AB, delete("d", "b")], ("b", 2), [], {Kind.LOST: ["d"]}, id="deleted-but-there"
        ),
        pytest.param(
            [*AB, put("x", "a", REFUSED, operation="o"), delete("d", "x", operation="o")],
            None,
            [],
            {Kind.FORKED: ["a"], Kind.LOST: ["b"]},
            id="a-deletion-after-its-own-refused-put",
        ),
        pytest.param(
            [*AB, put("x", "b", REFUSED)],
            ("x", 3),
            [],
            {Kind.PHANTOM: ["x"]},
            id="refused-but-there",
        ),
        pytest.param(
            [*AB, put("x", "b", forbidden=True)],
            ("x", 3),
            [],
            {Kind.UNCHECKED: ["x"]},
            id="forbidden",
        ),
        pytest.param(AB, ("b", 3), [], {Kind.MISCOUNTED: ["b"]}, id="counted-twice"),
        pytest.param([entry("a"), entry("b")], None, ["b"], {Kind.LOST: ["a"]}, id="entry-lost"),
        pytest.param([entry("a")], None, ["a", "a"], {Kind.TWICE: ["a"]}, id="entry-twice"),
        pytest.param([entry("a", REFUSED)], None, ["a"], {Kind.PHANTOM: ["a"]}, id="entry-refused"),
        pytest.param(
            TWICE, ("b", 2), [], {Kind.PHANTOM: ["a"], Kind.TWICE: ["o"]}, id="transaction-twice"
        ),
    ],
)
def test_writes(
    writes: Sequence[Write],
    last: tuple[str, int] | None,
    single: Sequence[str],
    expected: Found,
) -> None:
    stored = {} if last is None else {"e": Stored(*last)}
    assert by_kind(check(writes, stored, single).findings) == expected


@pytest.mark.parametrize(
    ("e", "f", "single", "expected"),
    [
        (("a2", 2), ("f2", 2), ["g"], {}),
        (("a", 1), ("f", 1), [], {}),
        (("a2", 2), ("f", 1), ["g"], {Kind.TORN: ["a2"]}),
        (("a2", 2), ("f2", 2), [], {Kind.TORN: ["a2"]}),
    ],
    ids=["whole", "not-at-all", "a-part", "without-the-entry"],
)
def test_an_unknown_transaction_has_landed_as_a_whole_or_not_at_all(
    e: tuple[str, int], f: tuple[str, int], single: Sequence[str], expected: Found
) -> None:
    stored = {"e": Stored(*e), "f": Stored(*f)}
    assert by_kind(check(TOGETHER, stored, single).findings) == expected


# --- tenures and reads under locks --------------------------------------------------------------


def tenure(name: str, granted: float, released: float | None, **more: Any) -> Asked:
    facts: dict[str, Any] = {
        "lock_id": "ann",
        "who": "p",
        "batch": False,
        "timeout": 10.0,
        "deadline": 100.0,
    }
    facts |= {"began": granted, "token": f"token of {name}", **more}
    return Asked(id=name, granted=granted, released=released, **facts)


FIRST, LATER = tenure("a", 1.0, 2.0), tenure("b", 2.0, 3.0)
SOONER = tenure("b", 1.9, 3.0)
RESTART = Span("restart", 1.4, 1.5)


@pytest.mark.parametrize(
    ("tenures", "losses", "overlaps"),
    [
        pytest.param([FIRST, LATER], [], [], id="in-turn"),
        pytest.param([tenure("a", 1, 5, deadline=2.0), LATER], [], [], id="a-lease-ended"),
        pytest.param([tenure("a", 1, None, deadline=2.0), LATER], [], [], id="a-holder-died"),
        pytest.param([FIRST, replace(SOONER, degraded=True)], [], [], id="degraded"),
        pytest.param([FIRST, SOONER], [RESTART], [], id="the-store-lost-it"),
        pytest.param(
            [FIRST, SOONER], [replace(RESTART, locks=frozenset({"ann"}))], [], id="broken"
        ),
        pytest.param([FIRST, SOONER], [], ["b"], id="overlap"),
        pytest.param([FIRST, SOONER], [Span("restart", 1.95, 3.0)], ["b"], id="lost-later"),
        pytest.param([FIRST, SOONER], [Span("restart", 0.1, 0.2)], ["b"], id="lost-before"),
        pytest.param([FIRST, tenure("c", 0.5, 0.9), SOONER], [], ["b"], id="not-consecutive"),
        pytest.param(
            [FIRST, tenure("b", 0.5, 3.0, degraded=True, confirmed=1.5)], [], ["b"], id="confirmed"
        ),
        pytest.param(
            [
                tenure(name, at, 3.0, degraded=True, backed_until=9.0)
                for name, at in (("a", 1), ("b", 2))
            ],
            [RESTART],
            ["b"],
            id="both-in-the-fallback-store",
        ),
    ],
)
def test_exclusion(tenures: list[Asked], losses: list[Span], overlaps: list[str]) -> None:
    history = History(attempts={each.id: each for each in tenures})
    found = by_kind(list(Exclusion(history, losses, []).findings()))
    assert found == ({Kind.OVERLAP: overlaps} if overlaps else {})


def written(name: str, before: str | None, reported: float, **more: Any) -> Write:
    facts: dict[str, Any] = {"entity": "c", "token": FIRST.token, "made": reported - 0.1, **more}
    return put(name, before, reported=reported, **facts)


W1, W2 = written("w1", None, 1.3), written("w2", "w1", 1.6)


@pytest.mark.parametrize(
    ("writes", "found", "stale"),
    [
        pytest.param([W1, W2], "w2", False, id="current"),
        pytest.param([W1, replace(W2, outcome=UNKNOWN)], "w1", False, id="it-may-land-later"),
        pytest.param([W1, replace(W2, outcome=REFUSED)], "w1", False, id="it-was-refused"),
        pytest.param([W1, W2, written("d", "w2", 1.9, deletes=True)], None, False, id="deleted"),
        pytest.param([W1, W2], "w1", True, id="an-old-state"),
        pytest.param([W1, W2], None, True, id="nothing-though-there"),
    ],
)
def test_reads(writes: list[Write], found: str | None, stale: bool) -> None:
    history = History(
        {each.id: each for each in writes},
        {each.id: each for each in (FIRST, LATER)},
        [LockedRead("c", found, LATER.token, 2.2, 2.3)],
    )
    findings = by_kind(list(Exclusion(history, [], []).findings()))
    assert findings == ({Kind.OUTDATED: ["b"]} if stale else {})


# --- waits --------------------------------------------------------------------------------------

HOLDER = tenure("holder", 0.1, 2.0, who="p1")
WAITER = tenure("w", 2.2, 9.0, began=0.5, queued=0.6, who="p2", timeout=5.0)
BATCH = tenure("batch", 2.1, 2.15, began=0.2, queued=0.3, who="p3", batch=True)
LATE = replace(WAITER, granted=9.5, released=9.6)
STOPPED = Span("process stopped", 1.0, 5.0, who="p2")


@pytest.mark.parametrize(
    ("attempts", "troubles", "stops", "expected"),
    [
        pytest.param(
            [HOLDER, WAITER, replace(BATCH, granted=9.1, released=9.2)], [], [], {}, id="in-order"
        ),
        pytest.param([HOLDER, WAITER, BATCH], [RESTART], [], {}, id="the-queue-was-lost"),
        pytest.param([HOLDER, WAITER, BATCH], [], [STOPPED], {}, id="it-was-stopped"),
        pytest.param([HOLDER, WAITER, replace(BATCH, degraded=True)], [], [], {}, id="degraded"),
        pytest.param([HOLDER, LATE], [], [STOPPED], {}, id="late-while-it-was-stopped"),
        pytest.param([HOLDER, WAITER, BATCH], [], [], {Kind.OVERTAKEN: ["w"]}, id="batch-first"),
        pytest.param(
            [HOLDER, WAITER, BATCH],
            [Span("restart", 2.5, 2.6)],
            [replace(STOPPED, who="p1")],
            {Kind.OVERTAKEN: ["w"]},
            id="another-fault",
        ),
        pytest.param([HOLDER, LATE], [], [], {Kind.LATE: ["w"]}, id="late"),
        pytest.param(
            [HOLDER, replace(LATE, granted=None, failed=9.5)],
            [],
            [],
            {Kind.LATE: ["w"]},
            id="gave-up-late",
        ),
    ],
)
def test_waits(
    attempts: list[Asked], troubles: list[Span], stops: list[Span], expected: Found
) -> None:
    assert by_kind(list(Waits(attempts, troubles, stops, 1.5).findings())) == expected


# --- jobs ---------------------------------------------------------------------------------------

#: The wall clock is ahead of the steady one.
WALL = 1000.0


def job(name: str, at: float, outcome: Outcome = ACCEPTED, **more: Any) -> tuple[Write, Staging]:
    """Return a job that was made at a time, sent 0.1 s later, and reported after 0.2 s."""
    reported = None if outcome is UNKNOWN else at + 0.2
    write = entry(name, outcome, together=f"{name}/1", made=at, reported=reported)
    facts: dict[str, Any] = {
        "kind": "plain",
        "key": f"key of {name}",
        "duplicate": False,
        "failures": 0,
    }
    facts |= {"ready": at + WALL, "since": at, **more}
    return write, Staging(name, "ann", **facts)


def ran(name: str, began: float, lasts: float | None = 0.1, **more: Any) -> Run:
    facts: dict[str, Any] = {
        "who": "p",
        "locked": False,
        "claimed_after": (began - 0.1, began - 0.1 + WALL),
    }
    facts |= {"ended": None if lasts is None else began + lasts, **more}
    return Run(f"{began} {facts['who']}", name, began=began, wall=began + WALL, **facts)


J, K = job("j", 1.0), job("k", 2.0)
DUPLICATE = job("d", 2.0, duplicate=True, key="key of j")
LONG = ran("j", 1.5, 5.0)


@pytest.mark.parametrize(
    ("jobs", "runs", "done", "stored", "expected"),
    [
        pytest.param([J, K], [ran("j", 1.5), ran("k", 2.5)], ["j", "k"], {}, {}, id="all-ran"),
        pytest.param([job("j", 1.0, UNKNOWN)], [], [], {}, {}, id="unknown"),
        pytest.param([J], [], [], {"dead": {"j": ATTEMPTS}}, {}, id="dead"),
        pytest.param(
            [job("j", 1.0, failures=FOR_EVER)],
            [],
            [],
            {"dead": {"j": FEW_ATTEMPTS}},
            {},
            id="poisoned",
        ),
        pytest.param([J, DUPLICATE], [ran("j", 2.5)], ["j"], {}, {}, id="a-duplicate"),
        pytest.param(
            [J], [LONG, ran("j", 1.5 + CLAIM_SECONDS, who="q")], ["j"], {}, {}, id="claim-ran-out"
        ),
        pytest.param(
            [J],
            [replace(LONG, locked=True), ran("j", 2.0, who="q", locked=True)],
            ["j"],
            {},
            {},
            id="each-with-the-lock",
        ),
        pytest.param(
            [job("j", 1.0, ready=3.0 + WALL), K],
            [ran("k", 2.5), ran("j", 3.5)],
            ["k", "j"],
            {},
            {},
            id="not-due-yet",
        ),
        pytest.param(
            [job("j", 1.0, ready=1.5 + WALL), K],
            [ran("k", 12.5), ran("j", 13.0)],
            ["k", "j"],
            {},
            {},
            id="clock-set-and-set-back",
        ),
        pytest.param(
            [job("j", 1.0, ready=1.5 + WALL), K],
            [ran("k", 2.5), ran("j", 2.7)],
            ["k", "j"],
            {},
            {Kind.DISORDERED: ["k"]},
            id="due-since",
        ),
        pytest.param([J], [], [], {}, {Kind.LOST: ["j"]}, id="never-ran"),
        pytest.param(
            [J], [], [], {"dead": {"j": ATTEMPTS - 1}}, {Kind.LOST: ["j"]}, id="given-up-early"
        ),
        pytest.param(
            [J, DUPLICATE],
            [ran("j", 1.5)],
            ["j"],
            {},
            {Kind.LOST: ["d"]},
            id="duplicate-of-a-begun-one",
        ),
        pytest.param(
            [job("j", 1.0, kind="transactional")],
            [ran("j", 1.5)],
            ["j", "j"],
            {},
            {Kind.TWICE: ["j"]},
            id="two-effects",
        ),
        pytest.param(
            [J], [ran("j", 1.5)], ["j"], {"unfinished": ["j"]}, {Kind.LEFT: ["j"]}, id="row-left"
        ),
        pytest.param([], [], [], {"names": ["=n"]}, {Kind.LEFT: ["=n"]}, id="name-left"),
        pytest.param(
            [job("j", 1.0, REFUSED)], [ran("j", 1.5)], [], {}, {Kind.EARLY: ["j"]}, id="rolled-back"
        ),
        pytest.param([J], [ran("j", 1.05)], ["j"], {}, {Kind.EARLY: ["j"]}, id="before-its-commit"),
        pytest.param(
            [J, K],
            [ran("k", 2.5), ran("j", 2.7)],
            ["k", "j"],
            {},
            {Kind.DISORDERED: ["k"]},
            id="out-of-order",
        ),
        pytest.param(
            [job("j", 1.0, ready=0.0), K],
            [ran("k", 2.5, claimed_after=(2.4, 0.0)), ran("j", 2.7)],
            ["k", "j"],
            {},
            {Kind.DISORDERED: ["k"]},
            id="due-by-its-commit-whatever-the-clock",
        ),
        pytest.param(
            [J, job("d@second", 2.0, duplicate=True, key="key of j")],
            [ran("j", 2.5)],
            ["j"],
            {},
            {Kind.LOST: ["d@second"]},
            id="duplicate-of-another-namespace",
        ),
        pytest.param(
            [J], [LONG, ran("j", 2.0, who="q")], ["j"], {}, {Kind.TOGETHER: ["j"]}, id="two-at-once"
        ),
    ],
)
def test_jobs(
    jobs: list[tuple[Write, Staging]],
    runs: list[Run],
    done: list[str],
    stored: Mapping[str, Any],
    expected: Found,
) -> None:
    history = History(
        writes={write.id: write for write, _ in jobs},
        stagings={staging.id: staging for _, staging in jobs},
        runs={each.number: each for each in runs},
        sent={f"{write.id}/1": write.made + 0.1 for write, _ in jobs},
        spans=[Span(CLOCK_SET, 12.42, 12.48)],
    )
    facts: dict[str, Any] = {"dead": {}, "unfinished": [], "names": [], **stored}
    checked = Runs(history, StoredJobs({"ann": done}, **facts))
    findings = list(checked.findings())
    assert by_kind(findings, check(checked.writes, {}, checked.landed).findings) == expected


# --- requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "stored", "unfinished", "expected"),
    [
        pytest.param([("r", "a"), ("r", "a"), ("r@second", "b")], "ab", [], {}, id="replayed"),
        pytest.param([], "ab", [], {}, id="no-answer"),
        pytest.param([("r", "a")], "aAb", [], {Kind.TWICE: ["r"]}, id="two-entries"),
        pytest.param([("r@second", "a")], "ab", [], {Kind.STRAY: ["r@second"]}, id="another-one's"),
        pytest.param([("r", "a")], "b", [], {Kind.LOST: ["a"]}, id="entry-lost"),
        pytest.param([], "ab", ["r"], {Kind.LEFT: ["r"]}, id="unfinished"),
    ],
)
def test_requests(
    answers: list[tuple[str, str]], stored: str, unfinished: list[str], expected: Found
) -> None:
    history = History(entered={"a": "r", "A": "r", "b": "r@second"}, answers=answers)
    assert by_kind(list(check_answers(history, list(stored), unfinished))) == expected


# --- trees, resources ---------------------------------------------------------------------------

STAYS, GOES = {"stays": "stays", "leaf": "stays"}, {"goes": "goes", "its leaf": "goes"}
#: The second tree was deleted.
FELLED = {
    "roots": frozenset({"stays"}),
    "leaves": {"leaf": "stays"},
    "files": frozenset({"leaf"}),
}
BOTH = {
    "roots": frozenset({"stays", "goes"}),
    "leaves": {"leaf": "stays", "its leaf": "goes"},
    "files": frozenset({"leaf", "its leaf"}),
}


@pytest.mark.parametrize(
    ("felled", "forbidden", "stored", "expected"),
    [
        pytest.param(ACCEPTED, False, FELLED, {}, id="gone"),
        pytest.param(UNKNOWN, False, BOTH, {}, id="unknown"),
        pytest.param(REFUSED, False, BOTH, {}, id="refused"),
        pytest.param(
            REFUSED, False, FELLED, {Kind.LOST: ["goes", "its leaf"]}, id="refused-but-gone"
        ),
        pytest.param(ACCEPTED, False, BOTH, {Kind.LOST: ["f"]}, id="deleted-but-there"),
        pytest.param(ACCEPTED, True, FELLED, {Kind.UNCHECKED: ["f"]}, id="without-the-lock"),
        pytest.param(
            ACCEPTED,
            False,
            BOTH | {"roots": frozenset({"stays"})},
            {Kind.ORPHAN: ["its leaf"]},
            id="an-orphan",
        ),
        pytest.param(
            ACCEPTED, False, FELLED | {"files": frozenset()}, {Kind.LOST: ["leaf"]}, id="file-lost"
        ),
        pytest.param(
            ACCEPTED,
            False,
            FELLED | {"files": BOTH["files"]},
            {Kind.LEFT: ["its leaf"]},
            id="file-left",
        ),
        pytest.param(
            ACCEPTED, False, FELLED | {"unfinished": ["x"]}, {Kind.LEFT: ["x"]}, id="unfinished"
        ),
        pytest.param(
            ACCEPTED, False, FELLED | {"problems": ["x"]}, {Kind.CLAIM: ["x"]}, id="void-claim"
        ),
        pytest.param(
            ACCEPTED,
            False,
            FELLED | {"titles": [("ann", "x"), ("bob", "x"), ("ann", "x")]},
            {Kind.TWICE: ["x"]},
            id="a-title-twice",
        ),
    ],
)
def test_trees(
    felled: Outcome, forbidden: bool, stored: Mapping[str, Any], expected: Found
) -> None:
    history = History(
        writes={name: entry(name) for name in STAYS | GOES},
        planted=STAYS | GOES,
        fellings={"f": Felling("goes", forbidden, felled)},
    )
    trees = Trees(history, StoredTrees(**stored))
    compared = check(list(history.writes.values()), {}, trees.landed)
    assert by_kind(list(trees.findings()), compared.findings) == expected


def gauge(when: str, **facts: int) -> dict[str, Any]:
    usual = {"threads": 2, "files": 10, "connections": 0, "resident": 100 << 20, "objects": 100_000}
    return {"who": "p", "when": when, "at": 1.0, **usual, **facts}


@pytest.mark.parametrize(
    ("last", "leaks_some"),
    [
        (gauge("meanwhile", connections=20, threads=9, files=40), False),
        (gauge("after"), False),
        (gauge("meanwhile", connections=100), True),
        (gauge("after", connections=1), True),
        (gauge("after", threads=3), True),
        (gauge("after", files=15), True),
        (gauge("after", resident=200 << 20), True),
        (gauge("after", objects=200_000), True),
    ],
)
def test_leaks(last: dict[str, Any], leaks_some: bool) -> None:
    found = by_kind(list(leaks([gauge("before"), gauge("warm"), last])))
    assert found == ({Kind.LEAK: ["p"]} if leaks_some else {})
