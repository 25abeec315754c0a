"""The checker of jobs finds each error, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.chaos.findings import Kind
from tests.chaos.history import History, Run, Staging, read
from tests.chaos.jobs import ATTEMPTS, CLAIM_SECONDS, FEW_ATTEMPTS, FOR_EVER
from tests.chaos.record import Outcome, Recorder, StoredJobs, Write
from tests.chaos.runs import Runs
from tests.chaos.writes import check

#: The wall clock is ahead of the steady one.
WALL = 1000.0


@dataclasses.dataclass
class Staged:
    """A job that was made at a time, sent 0.1 s later, and reported after 0.2 s."""

    id: str
    at: float
    kind: str = "plain"
    outcome: Outcome = Outcome.ACCEPTED
    ready: float | None = None
    failures: int = 0
    duplicate_of: str = ""
    sent: bool = True

    def write(self) -> Write:
        reported = None if self.outcome is Outcome.UNKNOWN else self.at + 0.2
        return Write(
            self.id,
            f"of {self.id}",
            None,
            None,
            together=f"{self.id}/1",
            outcome=self.outcome,
            made=self.at,
            reported=reported,
        )

    def staging(self) -> Staging:
        ready = self.at + WALL if self.ready is None else self.ready + WALL
        key = f"key of {self.duplicate_of or self.id}"
        duplicate = bool(self.duplicate_of)
        return Staging(
            self.id, "ann", self.kind, key, duplicate, self.failures, ready, since=self.at
        )


def ran(
    staging: str,
    began: float,
    lasts: float | None = 0.1,
    *,
    who: str = "p",
    locked: bool = False,
    claimed_after: float | None = None,
    set_by: float = 0.0,
) -> Run:
    after = began - 0.1 if claimed_after is None else claimed_after
    return Run(
        f"{who} at {began}",
        staging,
        who,
        began,
        began + WALL + set_by,
        (after, after + WALL),
        locked,
        None if lasts is None else began + lasts,
    )


def found(
    stagings: Sequence[Staged],
    runs: Sequence[Run] = (),
    done: Sequence[str] = (),
    *,
    dead: Mapping[str, int] | None = None,
    unfinished: Sequence[str] = (),
    names: Sequence[str] = (),
) -> list[tuple[Kind, str]]:
    history = History(
        writes={each.id: each.write() for each in stagings},
        stagings={each.id: each.staging() for each in stagings},
        runs={each.number: each for each in runs},
        sent={f"{each.id}/1": each.at + 0.1 for each in stagings if each.sent},
    )
    checked = Runs(history, StoredJobs({"ann": list(done)}, dead or {}, unfinished, names))
    findings = [*checked.findings(), *check(checked.writes, {}, checked.landed).findings]
    return [(each.kind, each.about) for each in findings]


A, B = Staged("a", 1.0), Staged("b", 2.0)


def test_jobs_that_ran() -> None:
    assert found([A, B], [ran("a", 1.5), ran("b", 2.5)], ["a", "b"]) == []


def test_a_plain_job_may_run_twice() -> None:
    runs = [ran("a", 1.5, None), ran("a", 5.0), ran("b", 5.5)]
    assert found([A, B], runs, ["a", "a", "b", "a"]) == []


def test_a_job_that_never_ran_is_lost() -> None:
    assert found([A]) == [(Kind.LOST, "a")]
    assert found([A], unfinished=["a"]) == [(Kind.LOST, "a")]


@pytest.mark.parametrize("done", [[], ["a"]])
def test_an_unknown_outcome(done: list[str]) -> None:
    unknown = dataclasses.replace(A, outcome=Outcome.UNKNOWN)
    assert found([unknown], [ran("a", 1.5)] * len(done), done) == []


def test_a_transactional_job_with_two_effects() -> None:
    twice = dataclasses.replace(A, kind="transactional")
    assert found([twice], [ran("a", 1.5)], ["a", "a"]) == [(Kind.TWICE, "a")]


def test_a_transactional_job_with_an_effect_that_is_dead_too() -> None:
    twice = dataclasses.replace(A, kind="transactional")
    assert found([twice], [ran("a", 1.5)], ["a"], dead={"a": ATTEMPTS}) == [(Kind.TWICE, "a")]


def test_dead_letters() -> None:
    poisoned = Staged("p", 1.0, "poisoned", failures=FOR_EVER)
    assert found([poisoned], dead={"p": FEW_ATTEMPTS}) == []
    assert found([A], dead={"a": ATTEMPTS}) == []
    assert found([A], dead={"a": ATTEMPTS - 1}) == [(Kind.LOST, "a")]


def test_what_is_left() -> None:
    assert found([A], [ran("a", 1.5)], ["a"], unfinished=["a"]) == [(Kind.LEFT, "a")]
    assert found([], names=["=n"]) == [(Kind.LEFT, "=n")]


class TestEarly:
    def test_of_a_transaction_that_was_rolled_back(self) -> None:
        refused = dataclasses.replace(A, outcome=Outcome.REFUSED)
        assert found([refused], [ran("a", 1.5)]) == [(Kind.EARLY, "a")]
        assert (Kind.PHANTOM, "a") in found([refused], [], ["a"])

    def test_before_its_commit_was_sent(self) -> None:
        assert found([A], [ran("a", 1.05)], ["a"]) == [(Kind.EARLY, "a")]
        assert found([A], [ran("a", 1.15)], ["a"]) == []

    def test_of_a_process_that_was_killed_before_the_commit(self) -> None:
        killed = dataclasses.replace(A, outcome=Outcome.UNKNOWN, sent=False)
        assert found([killed]) == []
        assert found([killed], [ran("a", 9.0)], ["a"]) == [(Kind.EARLY, "a")]

    def test_never_staged(self) -> None:
        assert (Kind.EARLY, "x") in found([], [ran("x", 1.0)])


class TestOrder:
    RUNS = (ran("b", 2.5), ran("a", 2.7))

    def test_the_later_one_first(self) -> None:
        assert found([A, B], self.RUNS, ["b", "a"]) == [(Kind.DISORDERED, "b")]

    @pytest.mark.parametrize(
        "earlier",
        [
            dataclasses.replace(A, at=1.9),  # reported after the other one was made
            dataclasses.replace(A, outcome=Outcome.UNKNOWN),
            dataclasses.replace(A, kind="unordered"),
            dataclasses.replace(A, ready=2.6),  # not due when the other one was chosen
        ],
    )
    def test_without_an_order(self, earlier: Staged) -> None:
        assert found([earlier, B], self.RUNS, ["b", "a"]) == []

    def test_a_dead_letter_may_have_run_late(self) -> None:
        assert found([A, B], self.RUNS, ["b", "a"], dead={"a": ATTEMPTS}) == []

    @pytest.mark.parametrize(("waiting", "passes"), [(14, False), (15, True)])
    def test_a_late_job_behind_many_others(self, waiting: int, passes: bool) -> None:
        """A known limit of the outbox; without late jobs there is none."""
        others = [Staged(f"o{number:02}", 1.95) for number in range(waiting - 1)]
        late = dataclasses.replace(A, ready=2.3)
        runs = [*self.RUNS, *(ran(each.id, 3.0) for each in others)]
        done = ["b", "a", *(each.id for each in others)]
        expected = [] if passes else [(Kind.DISORDERED, "b")]
        assert found([late, B, *others], runs, done) == expected
        assert (Kind.DISORDERED, "b") in found([A, B, *others], runs, done)

    def test_the_wall_clock_was_set(self) -> None:
        runs = [ran("b", 2.5, set_by=5.0), ran("a", 2.7)]
        assert found([A, B], runs, ["b", "a"]) == []


class TestTogether:
    FIRST = ran("a", 1.5, 5.0, who="p")

    def test_while_the_claim_was_in_force(self) -> None:
        assert found([A], [self.FIRST, ran("a", 2.0, who="q")], ["a"]) == [(Kind.TOGETHER, "a")]

    @pytest.mark.parametrize(
        "second",
        [
            ran("a", 1.5 + CLAIM_SECONDS, who="q"),  # it has run out
            ran("a", 7.0, who="q"),  # after it
            ran("a", 2.0, who="p"),  # its transaction once more
            ran("a", 2.0, who="q", set_by=5.0),
        ],
    )
    def test_legitimate(self, second: Run) -> None:
        assert found([A], [self.FIRST, second], ["a"]) == []

    def test_the_second_try_of_a_claim_that_has_run_out(self) -> None:
        tries = [ran("a", 1.5, 3.0), ran("a", 5.0, 3.0, claimed_after=1.4)]
        taken_over = ran("a", 4.8, 1.0, who="q", claimed_after=4.7)
        assert found([A], [*tries, taken_over], ["a"]) == []
        at_once = ran("a", 1.6, 1.0, who="q")
        assert found([A], [*tries, at_once], ["a"]) == [(Kind.TOGETHER, "a")]

    def test_both_have_the_lock(self) -> None:
        first = dataclasses.replace(self.FIRST, locked=True)
        second = ran("a", 2.0, who="q", locked=True)
        assert found([A], [first, second], ["a"]) == []
        second.locked = False
        assert found([A], [first, second], ["a"]) == [(Kind.TOGETHER, "a")]

    def test_a_killed_one_is_over(self) -> None:
        first = dataclasses.replace(self.FIRST, ended=None)
        assert found([A], [first, ran("a", 2.0, who="q")], ["a"]) == []


class TestDuplicates:
    AGAIN = Staged("d", 2.0, duplicate_of="a")

    def test_its_job_runs_later(self) -> None:
        assert found([A, self.AGAIN], [ran("a", 2.5)], ["a"]) == []

    def test_its_job_had_begun(self) -> None:
        assert found([A, self.AGAIN], [ran("a", 1.5)], ["a"]) == [(Kind.LOST, "d")]

    def test_its_job_never_was(self) -> None:
        assert (Kind.LOST, "d") in found([A, self.AGAIN])

    def test_it_was_rolled_back(self) -> None:
        again = dataclasses.replace(self.AGAIN, outcome=Outcome.REFUSED)
        assert found([A, again], [ran("a", 1.5)], ["a"]) == []


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "notes")
    staging = A.staging()
    recorder.note("staged", **dataclasses.asdict(staging))
    recorder.note("sent", together="a/1")
    facts = {"who": "p", "wall": 5.0, "claimed_after": (1.0, 4.0), "locked": True}
    recorder.note("run", number="p/1", id="a", **facts)
    recorder.note("ran", number="p/1", error="JobFails")
    recorder.note("run", number="p/2", id="a", **facts)
    recorder.note("delivered", outcome="ran")
    recorder.close()
    history = read([tmp_path / "notes"])
    assert history.stagings == {"a": staging}
    assert set(history.sent) == {"a/1"}
    ended, killed = history.runs.values()
    assert (ended.error, ended.claimed_after) == ("JobFails", (1.0, 4.0))
    assert ended.ended is not None
    assert ended.began <= ended.ended
    assert killed.ended is None
    assert history.delivered == {"ran": 1}
