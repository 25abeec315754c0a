"""Random requests that take locks in any order: one member detects each cycle, and all end.

Hypothesis chooses the locks of five requests, their order and times, the offsets of their clocks,
and the latency of each command. The test compares with the store's data: the holder and the waiters
of each lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.rivals import Rival, Step, cycle_from
from tests.simulation.watch import Watch
from tests.simulation.world import World
from userlock import DeadlockDetected, LockError
from userlock.lock import deadlock as circle_module
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

LOCKS = "abcde"
#: No request waits for that long, unless a cycle is overlooked.
WAIT_TIMEOUT = 60.0
#: A cycle is detected within one poll of its youngest member: 0.25 s far behind in a queue.
SEEN_WITHIN = 0.3

_pauses = st.sampled_from([0.0, 0.0, 0.001, 0.012, 0.1, 0.4])
_plans = st.lists(st.sampled_from(LOCKS), min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.tuples(*[st.builds(Step, st.just(name), _pauses) for name in names])
)
_skews = st.sampled_from([0.0, 0.0, 0.0005, -0.3, 86400.0])


class Game:
    def __init__(self, plans: Sequence[Sequence[Step]], skews: Sequence[float], seed: int) -> None:
        random = Random(seed)
        self._clock = ManualClock()
        self._watch = Watch(MemoryStore(clock=self._clock), self._clock)
        latency = partial(random.choice, [0.0, 0.0002, 0.003])
        self._world = World(self._clock, self._watch, latency=latency)
        self._plans = list(zip(plans, skews, strict=True))
        self._rivals: list[Rival] = []
        self._since: dict[frozenset[str], float] = {}
        self.cycles: list[list[Rival]] = []

    def play(self) -> None:
        with self._world.running():
            for number, (plan, skew) in enumerate(self._plans):
                rival = Rival(
                    self._world,
                    f"host/{number}",
                    plan,
                    wall_ahead=skew,
                    wait_timeout=WAIT_TIMEOUT,
                    work=0.02,
                )
                rival.refused = partial(self._refused, rival)  # type: ignore[method-assign]
                self._rivals.append(rival)
            self._world.after_step = self._check_detection
            self._world.pass_time(WAIT_TIMEOUT, until=self._all_done)
            assert self._all_done(), "everything ends"
            assert not self._watch.violations
            assert all(self._watch.store.read(lock_id) is None for lock_id in LOCKS), (
                "and all locks are released"
            )

    def _all_done(self) -> bool:
        return all(rival.done for rival in self._rivals)

    def _refused(self, rival: Rival, error: LockError) -> None:
        """Check that a request that just got an error is in a cycle, and its youngest member."""
        assert isinstance(error, DeadlockDetected), f"{rival.name} was refused: {error}"
        cycle = cycle_from(self._world, self._rivals, rival)
        assert cycle, f"{rival.name} is in no cycle"
        assert [lock_id for lock_id, _ in error.cycle] == [each.waits_for for each in cycle]
        assert rival.waits_since == max(each.waits_since for each in cycle), "the youngest"
        self.cycles.append(cycle)

    def _check_detection(self) -> None:
        now = self._clock.now()
        there = {
            frozenset(each.name for each in cycle_from(self._world, self._rivals, rival))
            for rival in self._rivals
            if rival.waits_for is not None
        } - {frozenset()}
        self._since = {cycle: self._since.get(cycle, now) for cycle in there}
        for cycle, since in self._since.items():
            assert now - since <= SEEN_WITHIN, f"a cycle is overlooked: {sorted(cycle)}"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    plans=st.lists(_plans, min_size=5, max_size=5),
    skews=st.lists(_skews, min_size=5, max_size=5),
    seed=st.integers(0, 2**16),
)
def test_there_is_an_error_if_and_only_if_there_is_a_cycle(
    plans: list[tuple[Step, ...]], skews: list[float], seed: int
) -> None:
    Game(plans, skews, seed).play()


def drawn(random: Random) -> list[list[Step]]:
    """Draw plans that are likely to contend."""
    return [
        [Step(lock_id, random.choice([0.0, 0.012, 0.1])) for lock_id in random.sample(LOCKS, 3)]
        for _ in range(5)
    ]


def play_thirty() -> Counter[int]:
    lengths: Counter[int] = Counter()
    for seed in range(30):
        game = Game(drawn(Random(seed)), [0.0] * 5, seed)
        game.play()
        lengths.update(len(cycle) for cycle in game.cycles)
    return lengths


def test_such_requests_do_form_cycles() -> None:
    """Without cycles the test above would prove nothing."""
    lengths = play_thirty()
    print(f"\ncycles by length: {dict(sorted(lengths.items()))}")
    assert lengths[2] >= 10
    assert lengths[3] >= 3


def test_without_the_detection_a_cycle_is_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("userlock.lock.scope._Holding", lambda *args: ())
    with pytest.raises(AssertionError, match="overlooked"):
        play_thirty()


def test_several_members_that_end_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circle_module, "_rank", lambda link: 0)
    monkeypatch.setattr(circle_module, "max", lambda cycle, key: cycle[-1], raising=False)
    with pytest.raises(AssertionError, match=r"the youngest|is in no cycle"):
        play_thirty()
