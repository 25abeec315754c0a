"""Each verb of leases with a fault at each of its commands, and with up to three of them.

In each case no other client's lease ends, no waiter is lost from the queue, reports about our own
lease are true, and unknown outcomes are reported as unknown, so that they can be repaired.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from tests.simulation.faults import Fault
from tests.unit.lock.scenarios import (
    SCENARIOS,
    Outcome,
    Scenario,
    State,
    World,
    release_forgotten,
    release_too_late,
    take_free,
    without_the_store,
)
from tests.unit.lock.shaky import Plan, ShakyStore
from userlock.lock.lease import Claim, Granted, Lease, Released
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.store import StoreUnavailable

#: The maximal number of faults in one call.
MOST_FAULTS = 3
FAULTS = [fault for fault in Fault if fault is not Fault.NONE]


@dataclasses.dataclass
class Run:
    world: World
    outcome: Outcome | StoreUnavailable
    steps: int
    before: State
    after: State

    @classmethod
    def of(cls, scenario: Scenario, plan: Plan) -> Run:
        world = World()
        act = scenario(world)
        before = world.state()
        world.store.shake(plan)
        outcome: Outcome | StoreUnavailable
        try:
            outcome = act()
        except StoreUnavailable as trouble:
            outcome = trouble
        steps = len(world.store.log)
        world.store.shake({})
        return cls(world, outcome, steps, before, world.state())

    def lease(self) -> Lease | None:
        return (
            self.outcome.lease
            if isinstance(self.outcome, Granted)
            else (self.outcome if isinstance(self.outcome, Lease) else None)
        )


def all_runs(scenario: Scenario) -> Iterator[tuple[Plan, Run]]:
    """Yield the run without a fault, with one at each command, and with one more after that."""
    plans: list[dict[int, Fault]] = [{}]
    for plan in plans:
        run = Run.of(scenario, plan)
        if len(plan) < MOST_FAULTS:
            following = range(max(plan, default=0) + 1, run.steps + 1)
            plans.extend({**plan, step: fault} for step in following for fault in FAULTS)
        yield plan, run


def check_all_but_the_release(scenario: Scenario) -> None:
    """Check each run: now, after late commands arrive, and after what was left is repaired."""
    for plan, run in all_runs(scenario):
        world, mine, before, after = run.world, run.world.mine.token, run.before, run.after
        others = before.of(world.others)
        assert after.of(world.others) == others, plan
        if run.lease() is not None:
            assert after.holder == mine, plan
        elif not isinstance(run.outcome, StoreUnavailable):
            assert after.holder != mine, plan
        # A release is an exception: it is retried unless it is known to have ended.
        unsent = isinstance(run.outcome, StoreUnavailable) and not run.outcome.sent
        unsent = unsent and not scenario.__name__.startswith("release")
        assert not unsent or after == before, f"{plan}: there is nothing to repair"
        world.store.arrive()
        assert world.state().of(world.others) == others, plan
        assert not unsent or world.state() == before, plan
        world.leases.release(run.lease() or without_the_store(world))
        assert world.state().of(world.others) == others, plan
        if isinstance(run.outcome, StoreUnavailable):
            assert mine not in (world.state().holder, *world.state().waiters), plan


def check_the_release(scenario: Scenario) -> None:
    """Check that a grant is released for good, whenever late commands arrive."""
    for plan, run in all_runs(scenario):
        lease, world = run.lease(), run.world
        if lease is None:
            continue
        assert world.leases.release(lease) == Released(), plan
        assert world.state().holder != world.mine.token, plan
        world.store.arrive()
        if lease.unsettled:
            world.leases.release(lease)
        assert world.state().holder != world.mine.token, plan


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_whatever_happens(scenario: Scenario) -> None:
    check_all_but_the_release(scenario)
    if scenario.__name__.startswith(("take", "claim", "begin", "extend", "confirm")):
        check_the_release(scenario)


class TestTheTestsThemselves:
    """The negative controls: without a protection, they fail."""

    def test_a_grant_that_is_not_looked_for_is_left_behind(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(LeaseProtocol, "_take_after", mock.AsyncMock(return_value=None))
        with pytest.raises(AssertionError):
            check_all_but_the_release(take_free)

    def test_a_late_command_that_is_forgotten_blocks_the_lock(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settled = Claim.lease

        def never_unsettled(*args: Any, **options: Any) -> Lease:
            return settled(*args, **{**options, "unsettled": False})

        monkeypatch.setattr(Claim, "lease", never_unsettled)
        with pytest.raises(AssertionError):
            check_the_release(take_free)

    @pytest.mark.parametrize("scenario", [release_too_late, release_forgotten])
    def test_a_store_that_does_not_compare_versions_ends_anothers_lease(
        self, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        remove = ShakyStore.remove

        def remove_anything(store: ShakyStore, lock_id: str, version: object) -> bool:
            stored = store._entries.get(lock_id)
            return remove(store, lock_id, None if stored is None else stored.version)

        monkeypatch.setattr(ShakyStore, "remove", remove_anything)
        with pytest.raises(AssertionError):
            check_all_but_the_release(scenario)
