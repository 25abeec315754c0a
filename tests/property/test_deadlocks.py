"""Any requests that take any locks in any order: a circle is seen, by one, and everything ends.

Hypothesis chooses what five requests take, in which order and when, how far
their clocks are apart, and how long each command takes to the store. The
test keeps to what the store has: who holds what, and who waits for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.rivals import Rival, Step, circle_from
from tests.simulation.watch import Watch
from tests.simulation.world import World
from userlock import DeadlockDetected, LockError
from userlock.lock import deadlock as circle_module
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

LOCKS = "abcde"
#: Nobody waits for that long, unless a circle is overlooked.
WAIT_TIMEOUT = 60.0
#: A circle is seen within a look of its youngest: of those who are far behind in a line, 0.25 s.
SEEN_WITHIN = 0.3

_pauses = st.sampled_from([0.0, 0.0, 0.001, 0.012, 0.1, 0.4])
_plans = st.lists(st.sampled_from(LOCKS), min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.tuples(*[st.builds(Step, st.just(name), _pauses) for name in names])
)
_skews = st.sampled_from([0.0, 0.0, 0.0005, -0.3, 86400.0])


class Game:
    """One run of five requests, and what is known of its circles.

    Attributes:
        circles: those that somebody gave way in.
    """

    def __init__(self, plans: Sequence[Sequence[Step]], skews: Sequence[float], seed: int) -> None:
        random = Random(seed)
        self._clock = ManualClock()
        self._watch = Watch(MemoryStore(clock=self._clock), self._clock)
        latency = partial(random.choice, [0.0, 0.0002, 0.003])
        self._world = World(self._clock, self._watch, latency=latency)
        self._plans = list(zip(plans, skews, strict=True))
        self._rivals: list[Rival] = []
        self._since: dict[frozenset[str], float] = {}
        self.circles: list[list[Rival]] = []

    def play(self) -> None:
        """Run them all to their ends."""
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
            self._world.after_step = self._nothing_is_overlooked
            self._world.pass_time(WAIT_TIMEOUT, until=self._all_done)
            assert self._all_done(), "everything ends"
            assert not self._watch.complaints
            assert all(self._watch.store.read(lock_id) is None for lock_id in LOCKS), "and is tidy"

    def _all_done(self) -> bool:
        return all(rival.done for rival in self._rivals)

    def _refused(self, rival: Rival, error: LockError) -> None:
        """Somebody gets an error just now: it is in a circle, and it is the one to give way."""
        assert isinstance(error, DeadlockDetected), f"{rival.name} was refused: {error}"
        circle = circle_from(self._world, self._rivals, rival)
        assert circle, f"{rival.name} is in no circle"
        assert [lock_id for lock_id, _ in error.cycle] == [each.waits_for for each in circle]
        assert rival.waits_since == max(each.waits_since for each in circle), "the youngest"
        self.circles.append(circle)

    def _nothing_is_overlooked(self) -> None:
        now = self._clock.now()
        there = {
            frozenset(each.name for each in circle_from(self._world, self._rivals, rival))
            for rival in self._rivals
            if rival.waits_for is not None
        } - {frozenset()}
        self._since = {circle: self._since.get(circle, now) for circle in there}
        for circle, since in self._since.items():
            assert now - since <= SEEN_WITHIN, f"a circle is overlooked: {sorted(circle)}"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    plans=st.lists(_plans, min_size=5, max_size=5),
    skews=st.lists(_skews, min_size=5, max_size=5),
    seed=st.integers(0, 2**16),
)
def test_there_is_an_error_if_and_only_if_there_is_a_circle(
    plans: list[tuple[Step, ...]], skews: list[float], seed: int
) -> None:
    Game(plans, skews, seed).play()


def drawn(random: Random) -> list[list[Step]]:
    """Plans at random that are likely to meet."""
    return [
        [Step(lock_id, random.choice([0.0, 0.012, 0.1])) for lock_id in random.sample(LOCKS, 3)]
        for _ in range(5)
    ]


def play_thirty() -> Counter[int]:
    """How many circles there were, by length."""
    lengths: Counter[int] = Counter()
    for seed in range(30):
        game = Game(drawn(Random(seed)), [0.0] * 5, seed)
        game.play()
        lengths.update(len(circle) for circle in game.circles)
    return lengths


def test_such_requests_do_meet_in_circles() -> None:
    """Or the test above would show nothing."""
    lengths = play_thirty()
    print(f"\ncircles by length: {dict(sorted(lengths.items()))}")
    assert lengths[2] >= 10
    assert lengths[3] >= 3


def test_without_the_detection_a_circle_is_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("userlock.lock.scope._Holding", lambda *args: ())
    with pytest.raises(AssertionError, match="overlooked"):
        play_thirty()


def test_if_everybody_gave_way_it_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circle_module, "_rank", lambda link: 0)
    monkeypatch.setattr(circle_module, "max", lambda circle, key: circle[-1], raising=False)
    with pytest.raises(AssertionError, match=r"the youngest|is in no circle"):
        play_thirty()
