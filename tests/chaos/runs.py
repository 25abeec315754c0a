"""The jobs of the outbox: none lost, early, out of order, or run twice at once.

A job appends its id to its user's ledger. A committed job is there, once if it is transactional, or
is a dead letter: the same as of a new entity, so `writes` compares that. Here:

Order: of two jobs of a user in a namespace, the first was reported as committed before the second
was made. So the second one's row is only read together with the first one's, or when that is gone.
In the ledger, the first one's first effect comes first, whatever the clocks of the processes that
staged them say. That needs no lock: the claims keep the order too. Only a job with a delay that was
not due yet, by its worker's wall clock, is passed.

At once: two runs of a job overlap, and whichever claim came later, the other one was in force. That
is right if both have the lock: then the first has lost it (`tenures` checks this). A claim lies
between a moment before it and the begin of its first run; ndb may run a transaction again.

    A   claimed ▐▀▀▀ runs ▀▀▀▀▀▀▀▀▀▌                    two seconds long
    B                 claimed ▐▀▀▀ runs ▀▀▀▌            a finding, unless both had the lock
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tests.chaos.findings import Finding, Kind
from tests.chaos.harms import CLOCK_SET
from tests.chaos.history import History, Run
from tests.chaos.jobs import ATTEMPTS, CLAIM_SECONDS, FOR_EVER, KINDS
from tests.chaos.programs import namespace_of
from tests.chaos.record import Outcome, StoredJobs, Write

#: A wall clock was set meanwhile, if it and the steady clock differ by so much, in seconds.
_SET_SECONDS = 0.02


class Runs:
    """The jobs of a run.

    Attributes:
        writes: all writes but duplicates, which make no job.
        landed: the ids of the jobs with an effect, each as often as it matters, and of the dead.
        figures: amounts of checked data, by name.
    """

    def __init__(self, history: History, stored: StoredJobs) -> None:
        self._history = history
        self._stored = stored
        self._stagings = history.stagings
        self._by_key = {s.key: s for s in self._stagings.values() if not s.duplicate}
        self._runs: dict[str, list[Run]] = defaultdict(list)
        for run in history.runs.values():
            self._runs[run.id].append(run)
        self._clocks_set = [span for span in history.spans if span.kind == CLOCK_SET]
        self._ordered = self._pairs = 0
        self.writes = [w for w in history.writes.values() if not self._is_duplicate(w.id)]
        self.landed = list(self._landed())

    def _is_duplicate(self, write_id: str) -> bool:
        staging = self._stagings.get(write_id)
        return staging is not None and staging.duplicate

    def _landed(self) -> Iterator[str]:
        for done in self._stored.ledgers.values():
            for each, count in Counter(done).items():
                yield from [each] * (count if self._is_transactional(each) else 1)
        effects = {each for done in self._stored.ledgers.values() for each in done}
        for each in self._stored.dead:
            if each not in effects or self._is_transactional(each):
                yield each

    def _is_transactional(self, staging_id: str) -> bool:
        staging = self._stagings.get(staging_id)
        return staging is not None and KINDS[staging.kind].transactional

    def findings(self) -> Iterator[Finding]:
        """Yield the errors, except those that `writes` finds."""
        for run in self._history.runs.values():
            yield from self._early(run)
        for ledger, done in self._stored.ledgers.items():
            yield from self._disordered(ledger, done)
        for runs in self._runs.values():
            yield from self._together(runs)
        yield from self._duplicates()
        yield from self._dead()
        effects = {each for done in self._stored.ledgers.values() for each in done}
        for each in (*effects.intersection(self._stored.unfinished), *self._stored.names):
            yield Finding(Kind.LEFT, each, "its row", self._user(each))

    # --- before the commit ------------------------------------------------------------------

    def _early(self, run: Run) -> Iterator[Finding]:
        write = self._history.writes.get(run.id)
        if write is None:
            how = "no such job was staged"
        elif write.outcome is Outcome.REFUSED:
            how = f"{write.operation} was rolled back"
        elif run.began < self._history.sent.get(write.together or "", run.began + 1):
            how = f"before the commit of {write.operation} was sent"
        else:
            return
        yield Finding(Kind.EARLY, run.id, how, self._user(run.id), run.began)

    # --- order ------------------------------------------------------------------------------

    def _disordered(self, ledger: str, done: Sequence[str]) -> Iterator[Finding]:
        """Yield the jobs whose first effect came before that of an earlier one."""
        first = [each for each in dict.fromkeys(done) if self._has_order(each)]
        accepted = {w.id: w for w in map(self._history.writes.__getitem__, first) if w.reported}
        self._ordered += len(first)
        for place, later in enumerate(first):
            made = self._history.writes[later].made
            chosen = self._chosen(later)
            for earlier in first[:place]:
                self._pairs += earlier in accepted and _reported(accepted[earlier]) < made
            for passed in first[place + 1 :]:
                if (
                    passed in accepted
                    and _reported(accepted[passed]) < made
                    and self._stagings[passed].ready <= chosen
                ):
                    yield Finding(
                        Kind.DISORDERED,
                        later,
                        f"took effect before {passed}, which was committed at "
                        f"{_reported(accepted[passed]):.3f}, before it was made at {made:.3f}",
                        ledger,
                        self._runs[later][0].began if self._runs[later] else None,
                    )
                    break

    def _has_order(self, staging_id: str) -> bool:
        """Return whether it counts in its user's order. A dead one may run late."""
        staging = self._stagings.get(staging_id)
        return (
            staging is not None
            and KINDS[staging.kind].ordered
            and self._history.writes[staging_id].outcome is not Outcome.REFUSED
            and staging_id not in self._stored.dead
        )

    def _chosen(self, staging_id: str) -> float:
        """Return a time by the worker's wall clock, before it chose this job to be the next.

        0 if the clock was set meanwhile.
        """
        runs = self._runs[staging_id]
        if not runs or any(map(self._clock_was_set, runs)):
            return 0.0
        return min(run.claimed_after[1] for run in runs)

    def _clock_was_set(self, run: Run) -> bool:
        """Return whether its wall clock was set between a moment before its claim and its begin.

        It may have been set back since.
        """
        steady, wall = run.claimed_after
        return abs((run.wall - run.began) - (wall - steady)) > _SET_SECONDS or any(
            span.meets(steady, run.began) for span in self._clocks_set
        )

    # --- two at once ------------------------------------------------------------------------

    def _together(self, runs: Sequence[Run]) -> Iterator[Finding]:
        runs = sorted(runs, key=lambda run: run.began)
        first: dict[tuple[str, tuple[float, float]], Run] = {}
        for run in runs:
            first.setdefault((run.who, run.claimed_after), run)
        for number, later in enumerate(runs):
            for earlier in runs[:number]:
                if earlier.ended is None or earlier.ended <= later.began:
                    continue
                if (earlier.locked and later.locked) or later.who == earlier.who:
                    continue
                if earlier is runs[0] and earlier.locked and self._is_transactional(earlier.id):
                    continue  # under the lock its first time stores no claim; it lands once
                one, other = (first[run.who, run.claimed_after] for run in (earlier, later))
                if self._clock_was_set(one) or self._clock_was_set(other):
                    continue
                if _is_before_the_end(one, other) and _is_before_the_end(other, one):
                    yield Finding(
                        Kind.TOGETHER,
                        later.id,
                        f"by {later.who} from {later.began:.3f}; {earlier.who} ran it from "
                        f"{earlier.began:.3f} to {earlier.ended:.3f}",
                        self._user(later.id),
                        later.began,
                    )

    # --- never ------------------------------------------------------------------------------

    def _duplicates(self) -> Iterator[Finding]:
        """Yield the duplicates whose job had begun, and so has not seen their changes."""
        landed = set(self.landed)
        for staging in self._stagings.values():
            write = self._history.writes[staging.id]
            if not staging.duplicate or write.outcome is not Outcome.ACCEPTED:
                continue
            other = self._by_key.get(staging.key)
            if other is None or other.id not in landed:
                how = "its job never was"
            elif namespace_of(other.id) != namespace_of(staging.id):
                how = f"{other.id} is in another namespace"
            elif any(run.began < staging.since for run in self._runs[other.id]):
                how = f"{other.id} had begun"
            else:
                continue
            yield Finding(Kind.LOST, staging.id, f"a duplicate: {how}", staging.user, write.made)

    def _dead(self) -> Iterator[Finding]:
        """Yield the dead letters that had attempts left."""
        for each, attempts in self._stored.dead.items():
            staging = self._stagings.get(each)
            if staging is not None and staging.failures < FOR_EVER and attempts < ATTEMPTS:
                yield Finding(Kind.LOST, each, f"dead after {attempts} attempts", staging.user)

    def _user(self, staging_id: str) -> str:
        staging = self._stagings.get(staging_id)
        return "" if staging is None else staging.user

    @property
    def figures(self) -> dict[str, float]:
        """Return amounts of checked data, by name. After `findings`."""
        runs = self._history.runs.values()
        dead = [
            self._stagings[each].failures for each in self._stored.dead if each in self._stagings
        ]
        return {
            "jobs staged": len(self._stagings),
            "duplicate jobs": sum(s.duplicate for s in self._stagings.values()),
            "jobs with an effect": sum(len(set(d)) for d in self._stored.ledgers.values()),
            "effects of jobs": sum(map(len, self._stored.ledgers.values())),
            "dead letters": len(self._stored.dead),
            "dead letters of jobs that could succeed": sum(
                failures < FOR_EVER for failures in dead
            ),
            "runs of jobs": len(runs),
            "runs of jobs with the lock": sum(run.locked for run in runs),
            "runs of jobs that failed": sum(bool(run.error) for run in runs),
            "runs of jobs killed": sum(run.ended is None for run in runs),
            "jobs checked for order": self._ordered,
            "pairs of jobs checked for order": self._pairs,
            **{f"messages: {o}": n for o, n in sorted(self._history.delivered.items())},
        }


def _reported(write: Write) -> float:
    assert write.reported is not None
    return write.reported if write.outcome is Outcome.ACCEPTED else float("inf")


def _is_before_the_end(run: Run, other: Run) -> bool:
    """Return whether it was claimed before the other one's claim ran out."""
    return run.wall < other.claimed_after[1] + CLAIM_SECONDS
