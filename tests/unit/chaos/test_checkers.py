"""Each checker of a chaos run finds the violations that are planted here: its negative controls.

One table per checker: a name, a history, and the findings. The first row is clean. The excuses that
a fault gives are shown by the runs themselves, which have no findings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.answers import check_answers
from tests.chaos.findings import Finding
from tests.chaos.harms import CLOCK_SET
from tests.chaos.history import Asked, Felling, History, LockedRead, Run, Span, Staging
from tests.chaos.jobs import ATTEMPTS, CLAIM_SECONDS
from tests.chaos.record import Outcome, Stored, StoredJobs, StoredTrees, Write
from tests.chaos.runs import Runs
from tests.chaos.tenures import Exclusion
from tests.chaos.trees import Trees
from tests.chaos.verdict import leaks
from tests.chaos.waits import Waits
from tests.chaos.writes import check

ACCEPTED, REFUSED, UNKNOWN = Outcome.ACCEPTED, Outcome.REFUSED, Outcome.UNKNOWN


def table(names: str, *rows: tuple[Any, ...]) -> pytest.MarkDecorator:
    """Return a parametrisation; each row begins with its name."""
    return pytest.mark.parametrize(names, [pytest.param(*row, id=name) for name, *row in rows])


def found(*groups: Sequence[Finding]) -> str:
    """Return the findings as "kind subject, kind subject"."""
    return ", ".join(sorted(f"{each.kind.name} {each.about}" for group in groups for each in group))


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
TWICE = [
    put("a", None, REFUSED, together="1", operation="o"),
    put("b", "a", together="2", operation="o"),
]
REFUSED_THEN_DELETED = [put("x", "a", REFUSED, operation="o"), delete("d", "x", operation="o")]
RETRIED = [replace(A, reported=3.0), *GONE[1:], put("x", "a")]


@table(
    "writes, last, single, expected",
    ("a-chain", ABC, ("c", 3), "", ""),
    ("built-on", [*ABC, put("d", "c", UNKNOWN), put("f", "d")], ("f", 5), "", ""),
    ("late-deletion", [*GONE, delete("late", "a", reported=3.0)], None, "", ""),
    ("retried-after-its-deletion", RETRIED, ("x", 2), "", ""),
    ("put-after-a-deletion", [*GONE, put("x", "a")], ("x", 2), "", "FORKED a"),
    ("deleted-early", [*GONE, delete("late", "a", reported=1.0)], None, "", "FORKED a"),
    ("overwritten", [*AB, put("c", "a")], ("c", 2), "", "FORKED a, LOST b"),
    ("an-old-state-came-back", ABC, ("b", 2), "", "LOST c"),
    ("refused-deletion", [A, delete("d", "a", REFUSED)], None, "", "LOST a"),
    ("deleted-but-there", [*AB, delete("d", "b")], ("b", 2), "", "LOST d"),
    ("after-its-refused-put", [*AB, *REFUSED_THEN_DELETED], None, "", "FORKED a, LOST b"),
    ("refused-but-there", [*AB, put("x", "b", REFUSED)], ("x", 3), "", "PHANTOM x"),
    ("forbidden", [*AB, put("x", "b", forbidden=True)], ("x", 3), "", "UNCHECKED x"),
    ("counted-twice", AB, ("b", 3), "", "MISCOUNTED b"),
    ("entry-lost", [entry("a"), entry("b")], None, "b", "LOST a"),
    ("entry-twice", [entry("a")], None, "aa", "TWICE a"),
    ("entry-refused", [entry("a", REFUSED)], None, "a", "PHANTOM a"),
    ("transaction-twice", TWICE, ("b", 2), "", "PHANTOM a, TWICE o"),
)
def test_writes(
    writes: Sequence[Write], last: tuple[str, int] | None, single: str, expected: str
) -> None:
    stored = {} if last is None else {"e": Stored(*last)}
    assert found(check(writes, stored, list(single)).findings) == expected


@table(
    "e, f, single, expected",
    ("whole", ("a2", 2), ("f2", 2), ["g"], ""),
    ("not-at-all", ("a", 1), ("f", 1), [], ""),
    ("a-part", ("a2", 2), ("f", 1), ["g"], "TORN a2"),
    ("without-the-entry", ("a2", 2), ("f2", 2), [], "TORN a2"),
)
def test_an_unknown_transaction_has_landed_as_a_whole_or_not_at_all(
    e: tuple[str, int], f: tuple[str, int], single: Sequence[str], expected: str
) -> None:
    facts: dict[str, Any] = {"together": "1", "operation": "o"}
    writes = [
        *(A, put("f", None, entity="f"), put("a2", "a", UNKNOWN, **facts)),
        *(put("f2", "f", UNKNOWN, entity="f", **facts), entry("g", UNKNOWN, together="1")),
    ]
    assert found(check(writes, {"e": Stored(*e), "f": Stored(*f)}, single).findings) == expected


# --- tenures and reads under locks --------------------------------------------------------------


def tenure(name: str, granted: float, released: float | None, **more: Any) -> Asked:
    facts: dict[str, Any] = {"lock_id": "ann", "who": "p", "batch": False, "timeout": 10.0}
    facts |= {"deadline": 100.0, "began": granted, "token": f"token of {name}", **more}
    return Asked(id=name, granted=granted, released=released, **facts)


FIRST, LATER = tenure("a", 1.0, 2.0), tenure("b", 2.0, 3.0)
SOONER = tenure("b", 1.9, 3.0)
RESTART = Span("restart", 1.4, 1.5)
BACKED = [
    tenure(name, at, 3.0, degraded=True, backed_until=9.0) for name, at in (("a", 1), ("b", 2))
]
CONFIRMED = tenure("b", 0.5, 3.0, degraded=True, confirmed=1.5)


@table(
    "tenures, losses, expected",
    ("in-turn", [FIRST, LATER], [], ""),
    ("the-store-lost-it", [FIRST, SOONER], [RESTART], ""),
    ("overlap", [FIRST, SOONER], [], "OVERLAP b"),
    ("lost-later", [FIRST, SOONER], [Span("restart", 1.95, 3.0)], "OVERLAP b"),
    ("lost-before", [FIRST, SOONER], [Span("restart", 0.1, 0.2)], "OVERLAP b"),
    ("not-consecutive", [FIRST, tenure("c", 0.5, 0.9), SOONER], [], "OVERLAP b"),
    ("confirmed", [FIRST, CONFIRMED], [], "OVERLAP b"),
    ("both-in-the-fallback-store", BACKED, [RESTART], "OVERLAP b"),
)
def test_exclusion(tenures: list[Asked], losses: list[Span], expected: str) -> None:
    history = History(attempts={each.id: each for each in tenures})
    assert found(list(Exclusion(history, losses, []).findings())) == expected


def written(name: str, before: str | None, reported: float, **more: Any) -> Write:
    facts: dict[str, Any] = {"entity": "c", "token": FIRST.token, "made": reported - 0.1, **more}
    return put(name, before, reported=reported, **facts)


W1, W2 = written("w1", None, 1.3), written("w2", "w1", 1.6)


#: It broke the lease before the grant was reported, or before the request.
BROKEN, BROKEN_BEFORE = Span("broken", 0.8, 0.9), Span("broken", 0.1, 0.2)


@table(
    "writes, state, losses, expected",
    ("current", [W1, W2], "w2", [], ""),
    ("it-may-land-later", [W1, replace(W2, outcome=UNKNOWN)], "w1", [], ""),
    ("deleted", [W1, W2, written("d", "w2", 1.9, deletes=True)], None, [], ""),
    ("the-first-was-lost", [W1, W2], "w1", [BROKEN], ""),
    ("an-old-state", [W1, W2], "w1", [BROKEN_BEFORE], "OUTDATED b"),
    ("nothing-though-there", [W1, W2], None, [], "OUTDATED b"),
)
def test_reads(writes: list[Write], state: str | None, losses: list[Span], expected: str) -> None:
    history = History(
        {each.id: each for each in writes},
        {each.id: each for each in (replace(FIRST, began=0.5), LATER)},
        [LockedRead("c", state, LATER.token, 2.2, 2.3)],
    )
    assert found(list(Exclusion(history, losses, []).findings())) == expected


# --- waits --------------------------------------------------------------------------------------

HOLDER = tenure("holder", 0.1, 2.0, who="p1")
WAITER = tenure("w", 2.2, 9.0, began=0.5, queued=0.6, who="p2", timeout=5.0)
BATCH = tenure("batch", 2.1, 2.15, began=0.2, queued=0.3, who="p3", batch=True)
LATE = replace(WAITER, granted=9.5, released=9.6)
STOPPED = Span("process stopped", 1.0, 5.0, who="p2")
ANOTHERS = ([Span("restart", 2.5, 2.6)], [replace(STOPPED, who="p1")])


@table(
    "attempts, troubles, stops, expected",
    ("in-order", [HOLDER, WAITER, replace(BATCH, granted=9.1, released=9.2)], [], [], ""),
    ("it-was-stopped", [HOLDER, WAITER, BATCH], [], [STOPPED], ""),
    ("batch-first", [HOLDER, WAITER, BATCH], [], [], "OVERTAKEN w"),
    ("another-fault", [HOLDER, WAITER, BATCH], *ANOTHERS, "OVERTAKEN w"),
    ("late", [HOLDER, LATE], [], [], "LATE w"),
    ("gave-up-late", [HOLDER, replace(LATE, granted=None, failed=9.5)], [], [], "LATE w"),
)
def test_waits(
    attempts: list[Asked], troubles: list[Span], stops: list[Span], expected: str
) -> None:
    assert found(list(Waits(attempts, troubles, stops, 1.5).findings())) == expected


# --- jobs ---------------------------------------------------------------------------------------

#: The wall clock is ahead of the steady one.
WALL = 1000.0


def job(name: str, at: float, outcome: Outcome = ACCEPTED, **more: Any) -> tuple[Write, Staging]:
    """Return a job that was made at a time, sent 0.1 s later, and reported after 0.2 s."""
    reported = None if outcome is UNKNOWN else at + 0.2
    write = entry(name, outcome, together=f"{name}/1", made=at, reported=reported)
    facts: dict[str, Any] = {"kind": "plain", "key": f"key of {name}", "duplicate": False}
    facts |= {"failures": 0, "ready": at + WALL, "since": at, **more}
    return write, Staging(name, "ann", **facts)


def ran(name: str, began: float, lasts: float = 0.1, **more: Any) -> Run:
    facts: dict[str, Any] = {"who": "p", "locked": False, "ended": began + lasts, **more}
    facts.setdefault("claimed_after", (began - 0.1, began - 0.1 + WALL))
    return Run(f"{began} {facts['who']}", name, began=began, wall=began + WALL, **facts)


J, K = job("j", 1.0), job("k", 2.0)
DUPLICATE = job("d", 2.0, duplicate=True, key="key of j")
OF_ANOTHER = job("d@second", 2.0, duplicate=True, key="key of j")
DUE, DUE_AT_ONCE = job("j", 1.0, ready=1.5 + WALL), job("j", 1.0, ready=0.0)
LONG, AGAIN = ran("j", 1.5, 5.0), ran("j", 1.5 + CLAIM_SECONDS, who="q")
UNSEEN, LOCKED = ran("j", 1.5, 5.0, locked=True), ran("j", 2.0, who="q", locked=True)
WITHOUT_LOCK = ran("j", 2.0, who="q")
EARLY_CLAIM = ran("k", 2.5, claimed_after=(2.4, 0.0))


@table(
    "jobs, runs, done, stored, expected",
    ("all-ran", [J, K], [ran("j", 1.5), ran("k", 2.5)], "jk", {}, ""),
    ("dead", [J], [], "", {"dead": {"j": ATTEMPTS}}, ""),
    ("a-duplicate", [J, DUPLICATE], [ran("j", 2.5)], "j", {}, ""),
    ("claim-ran-out", [J], [LONG, AGAIN], "j", {}, ""),
    ("no-claim", [job("j", 1, kind="transactional")], [UNSEEN, WITHOUT_LOCK], "j", {}, ""),
    ("clock-set-and-back", [DUE, K], [ran("k", 12.5), ran("j", 13.0)], "kj", {}, ""),
    ("due-since", [DUE, K], [ran("k", 2.5), ran("j", 2.7)], "kj", {}, "DISORDERED k"),
    ("never-ran", [J], [], "", {}, "LOST j"),
    ("given-up-early", [J], [], "", {"dead": {"j": ATTEMPTS - 1}}, "LOST j"),
    ("duplicate-of-a-begun-one", [J, DUPLICATE], [ran("j", 1.5)], "j", {}, "LOST d"),
    ("two-effects", [job("j", 1, kind="transactional")], [ran("j", 1.5)], "jj", {}, "TWICE j"),
    ("row-left", [J], [ran("j", 1.5)], "j", {"unfinished": ["j"]}, "LEFT j"),
    ("name-left", [], [], "", {"names": ["=n"]}, "LEFT =n"),
    ("rolled-back", [job("j", 1.0, REFUSED)], [ran("j", 1.5)], "", {}, "EARLY j"),
    ("before-its-commit", [J], [ran("j", 1.05)], "j", {}, "EARLY j"),
    ("out-of-order", [J, K], [ran("k", 2.5), ran("j", 2.7)], "kj", {}, "DISORDERED k"),
    ("due-by-its-commit", [DUE_AT_ONCE, K], [EARLY_CLAIM, ran("j", 2.7)], "kj", {}, "DISORDERED k"),
    ("duplicate-elsewhere", [J, OF_ANOTHER], [ran("j", 2.5)], "j", {}, "LOST d@second"),
    ("two-at-once", [J], [LONG, WITHOUT_LOCK], "j", {}, "TOGETHER j"),
    ("claimed", [job("j", 1, kind="transactional")], [LONG, LOCKED], "j", {}, "TOGETHER j"),
    ("claimed-under-the-lock", [J], [UNSEEN, WITHOUT_LOCK], "j", {}, "TOGETHER j"),
)
def test_jobs(
    jobs: list[tuple[Write, Staging]],
    runs: list[Run],
    done: str,
    stored: Mapping[str, Any],
    expected: str,
) -> None:
    history = History(
        writes={write.id: write for write, _ in jobs},
        stagings={staging.id: staging for _, staging in jobs},
        runs={each.number: each for each in runs},
        sent={f"{write.id}/1": write.made + 0.1 for write, _ in jobs},
        spans=[Span(CLOCK_SET, 12.42, 12.48)],
    )
    facts: dict[str, Any] = {"dead": {}, "unfinished": [], "names": [], **stored}
    checked = Runs(history, StoredJobs({"ann": list(done)}, **facts))
    findings = list(checked.findings())
    assert found(findings, check(checked.writes, {}, checked.landed).findings) == expected


# --- requests, trees, resources -----------------------------------------------------------------


@table(
    "answers, stored, unfinished, expected",
    ("replayed", [("r", "a"), ("r", "a"), ("r@second", "b")], "ab", [], ""),
    ("two-entries", [("r", "a")], "aAb", [], "TWICE r"),
    ("another-one's", [("r@second", "a")], "ab", [], "STRAY r@second"),
    ("entry-lost", [("r", "a")], "b", [], "LOST a"),
    ("unfinished", [], "ab", ["r"], "LEFT r"),
)
def test_requests(
    answers: list[tuple[str, str]], stored: str, unfinished: list[str], expected: str
) -> None:
    history = History(entered={"a": "r", "A": "r", "b": "r@second"}, answers=answers)
    assert found(list(check_answers(history, list(stored), unfinished))) == expected


STAYS, GOES = {"stays": "stays", "leaf": "stays"}, {"goes": "goes", "its leaf": "goes"}
BOTH_FILES = frozenset({"leaf", "its leaf"})
#: The second tree was deleted.
FELLED: dict[str, Any] = {"roots": frozenset({"stays"}), "leaves": {"leaf": "stays"}}
FELLED["files"] = frozenset({"leaf"})
BOTH = {"roots": frozenset({"stays", "goes"}), "leaves": {"leaf": "stays", "its leaf": "goes"}}
BOTH["files"] = BOTH_FILES
TITLES = [("ann", "x"), ("bob", "x"), ("ann", "x")]


@table(
    "felled, forbidden, stored, expected",
    ("gone", ACCEPTED, False, FELLED, ""),
    ("unknown", UNKNOWN, False, BOTH, ""),
    ("refused-but-gone", REFUSED, False, FELLED, "LOST goes, LOST its leaf"),
    ("deleted-but-there", ACCEPTED, False, BOTH, "LOST f"),
    ("without-the-lock", ACCEPTED, True, FELLED, "UNCHECKED f"),
    ("an-orphan", ACCEPTED, False, BOTH | {"roots": FELLED["roots"]}, "ORPHAN its leaf"),
    ("file-lost", ACCEPTED, False, FELLED | {"files": frozenset()}, "LOST leaf"),
    ("file-left", ACCEPTED, False, FELLED | {"files": BOTH_FILES}, "LEFT its leaf"),
    ("unfinished", ACCEPTED, False, FELLED | {"unfinished": ["x"]}, "LEFT x"),
    ("void-claim", ACCEPTED, False, FELLED | {"problems": ["x"]}, "CLAIM x"),
    ("a-title-twice", ACCEPTED, False, FELLED | {"titles": TITLES}, "TWICE x"),
)
def test_trees(felled: Outcome, forbidden: bool, stored: Mapping[str, Any], expected: str) -> None:
    history = History(
        writes={name: entry(name) for name in STAYS | GOES},
        planted=STAYS | GOES,
        fellings={"f": Felling("goes", forbidden, felled)},
    )
    trees = Trees(history, StoredTrees(**stored))
    compared = check(list(history.writes.values()), {}, trees.landed)
    assert found(list(trees.findings()), compared.findings) == expected


def gauge(when: str, **facts: int) -> dict[str, Any]:
    usual = {"threads": 2, "files": 10, "connections": 0, "resident": 100 << 20, "objects": 100_000}
    return {"who": "p", "when": when, "at": 1.0, **usual, **facts}


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (gauge("meanwhile", connections=20, threads=9, files=40), ""),
        (gauge("meanwhile", connections=100), "LEAK p"),
        (gauge("after", connections=1), "LEAK p"),
        (gauge("after", threads=3), "LEAK p"),
        (gauge("after", files=15), "LEAK p"),
        (gauge("after", resident=200 << 20), "LEAK p"),
        (gauge("after", objects=200_000), "LEAK p"),
    ],
)
def test_leaks(last: dict[str, Any], expected: str) -> None:
    assert found(list(leaks([gauge("before"), gauge("warm"), last]))) == expected
