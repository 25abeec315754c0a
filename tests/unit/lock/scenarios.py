"""Situations in which each verb of leases is used: a lock, ourselves, and other clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.leases import Leases, existing, taken
from tests.unit.lock.shaky import ShakyStore
from userlock.lock.lease import Claim, Granted, Held, Lease, Lost, Released
from userlock.lock.record import PATIENCE_SECONDS, Record
from userlock.testing import ManualClock, make_claim

LOCK = "learner-1"


class World:
    """A lock, ourselves, and other clients."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ShakyStore(clock=self.clock)
        self.leases = Leases(self.store, self.clock)
        self.mine = make_claim(LOCK)
        self.others: set[str] = set()

    def other(self, **options: float) -> Claim:
        claim = make_claim(LOCK, **options)  # type: ignore[arg-type]
        self.others.add(claim.token)
        return claim

    def record(self) -> Record:
        return Record(existing(self.store.read(LOCK)))

    def take(self, claim: Claim) -> Lease:
        return taken(self.leases.take(claim))

    def join(self, claim: Claim) -> Claim:
        assert self.leases.join(claim) is not None
        return claim

    def take_over(self, claim: Claim) -> Lease:
        return taken(self.leases.claim(claim, self.record(), passing=False))

    def held(self, *waiters: Claim) -> Lease:
        """Let another client take the lock, and these wait for it."""
        holder = self.take(self.other())
        for claim in waiters:
            self.join(claim)
        return holder

    def freed(self, *waiters: Claim) -> Record:
        """Let another client release the lock to these waiters."""
        self.leases.release(self.held(*waiters))
        return self.record()

    def evicted(self) -> Record:
        """Return the record for which we waited before the store lost it."""
        self.take(make_claim(LOCK))
        self.join(self.mine)
        seen = self.record()
        self.store.evict(LOCK)
        return seen

    def forgotten(self) -> Lease:
        """Return our lease, of which the store knows nothing; another client has the lock."""
        lease = self.take(self.mine)
        self.store.forget_everything()
        self.held(self.other())
        return lease

    def left(self) -> None:
        """Let another client wait, and leave the queue."""
        self.leases.leave(LOCK, self.join(self.other()).token)

    def state(self) -> State:
        stored = self.store.read(LOCK)
        record = None if stored is None else Record(stored)
        return State(
            None if record is None or record.free else record.holder.token,
            [] if record is None else [waiter.token for waiter in record.waiters()],
        )


@dataclasses.dataclass
class State:
    holder: str | None
    waiters: list[str]

    def of(self, tokens: set[str]) -> State:
        """Return the part of the state that concerns these clients."""
        return State(
            self.holder if self.holder in tokens else None,
            [token for token in self.waiters if token in tokens],
        )


Outcome = Lease | Granted | Held | Released | Lost | Record | None
#: A function that creates a situation, and returns the call to make in it.
Scenario = Callable[[World], Callable[[], Outcome]]


def take_free(world: World) -> Callable[[], Outcome]:
    return lambda: world.leases.take(world.mine)


def take_held(world: World) -> Callable[[], Outcome]:
    world.held(world.other())
    return lambda: world.leases.take(world.mine)


def claim_released(world: World) -> Callable[[], Outcome]:
    seen = world.freed(world.mine, world.other())
    return lambda: world.leases.claim(world.mine, seen, passing=False)


def claim_lapsed(world: World) -> Callable[[], Outcome]:
    world.take(world.other(ttl_seconds=1))
    world.join(world.mine)
    world.join(world.other())
    world.clock.advance(1)
    seen = world.record()
    return lambda: world.leases.claim(world.mine, seen, passing=False)


def claim_too_late(world: World) -> Callable[[], Outcome]:
    """Claim after we were paused, and the next waiter has overtaken us."""
    seen = world.freed(world.mine, behind := world.other())
    taken(world.leases.claim(behind, seen, passing=True))
    return lambda: world.leases.claim(world.mine, seen, passing=False)


def begin_forgotten(world: World) -> Callable[[], Outcome]:
    seen = world.evicted()
    return lambda: world.leases.begin(world.mine, seen)


def begin_too_late(world: World) -> Callable[[], Outcome]:
    seen = world.evicted()
    world.held(world.other())
    return lambda: world.leases.begin(world.mine, seen)


def release_alone(world: World) -> Callable[[], Outcome]:
    lease = world.take(world.mine)
    return lambda: world.leases.release(lease)


def release_to_others(world: World) -> Callable[[], Outcome]:
    lease = world.take(world.mine)
    world.join(world.other())
    world.join(world.other())
    return lambda: world.leases.release(lease)


def release_after_others_left(world: World) -> Callable[[], Outcome]:
    lease = world.take(world.mine)
    world.left()
    return lambda: world.leases.release(lease)


def release_what_was_waited_for(world: World) -> Callable[[], Outcome]:
    world.freed(world.mine, world.other())
    lease = world.take_over(world.mine)
    return lambda: world.leases.release(lease)


def release_too_late(world: World) -> Callable[[], Outcome]:
    lease = world.take(dataclasses.replace(world.mine, ttl_seconds=1))
    successor = world.join(world.other())
    world.join(world.other())
    world.clock.advance(1)
    world.take_over(successor)
    return lambda: world.leases.release(lease)


def release_forgotten(world: World) -> Callable[[], Outcome]:
    lease = world.forgotten()
    return lambda: world.leases.release(lease)


def release_without_room(world: World) -> Callable[[], Outcome]:
    lease = world.take(world.mine)
    world.join(world.other())
    world.left()
    world.store.room = 0
    return lambda: world.leases.release(lease)


def release_without_room_for_nobody(world: World) -> Callable[[], Outcome]:
    lease = world.take(world.mine)
    world.left()
    world.store.room = 0
    return lambda: world.leases.release(lease)


def extend_alone(world: World) -> Callable[[], Outcome]:
    lease = world.take(world.mine)
    return lambda: world.leases.extend(lease, 60)


def extend_with_others(world: World) -> Callable[[], Outcome]:
    lease = world.take(world.mine)
    world.join(world.other())
    world.join(world.other())
    return lambda: world.leases.extend(lease, 60)


def extend_forgotten(world: World) -> Callable[[], Outcome]:
    lease = world.forgotten()
    return lambda: world.leases.extend(lease, 60)


def confirm_free(world: World) -> Callable[[], Outcome]:
    lease = without_the_store(world)
    return lambda: world.leases.confirm(lease)


def confirm_held(world: World) -> Callable[[], Outcome]:
    world.held(world.other())
    return confirm_free(world)


def confirm_lapsed(world: World) -> Callable[[], Outcome]:
    world.take(world.other(ttl_seconds=1))
    world.clock.advance(1)
    return confirm_free(world)


def confirm_where_another_is_next(world: World) -> Callable[[], Outcome]:
    world.freed(world.other())
    return confirm_free(world)


def confirm_past_the_dead(world: World) -> Callable[[], Outcome]:
    seen = world.freed(make_claim(LOCK))
    world.leases.reserve(world.other(), seen, leaving=False)
    world.clock.advance(2 * PATIENCE_SECONDS)
    return confirm_free(world)


def confirm_in_line(world: World) -> Callable[[], Outcome]:
    world.held(world.mine, world.other())
    return confirm_free(world)


def offer_what_is_free(world: World) -> Callable[[], Outcome]:
    seen = world.freed(world.mine, world.other())
    return lambda: _nothing(world.leases.reserve(world.mine, seen, leaving=True))


def offer_too_late(world: World) -> Callable[[], Outcome]:
    seen = world.freed(first := world.other(), world.other())
    world.take_over(first)
    return lambda: _nothing(world.leases.reserve(world.mine, seen, leaving=True))


def _nothing(_: object) -> None:
    """Return nothing: a reservation is no lease."""


def stand_in_line(world: World) -> Callable[[], Outcome]:
    world.held(world.other())
    return lambda: world.leases.join(world.mine)


def leave_the_line(world: World) -> Callable[[], Outcome]:
    world.held(world.mine, world.other())
    return lambda: world.leases.leave(LOCK, world.mine.token)


def without_the_store(world: World) -> Lease:
    """Return a lease of the outage policy; the next attempt may leave something behind."""
    claim = world.mine
    return Lease(
        LOCK,
        claim.token,
        world.clock.now() + claim.ttl_seconds,
        claim.ttl_seconds,
        degraded=True,
        unsettled=True,
        record=claim.record,
    )


SCENARIOS: list[Scenario] = [
    *(take_free, take_held, claim_released, claim_lapsed, claim_too_late),
    *(begin_forgotten, begin_too_late, release_alone, release_to_others),
    *(release_after_others_left, release_what_was_waited_for, release_too_late),
    *(release_forgotten, extend_alone, extend_with_others, extend_forgotten),
    *(confirm_free, confirm_held, confirm_lapsed, stand_in_line, leave_the_line),
    *(release_without_room, release_without_room_for_nobody, confirm_where_another_is_next),
    *(confirm_past_the_dead, confirm_in_line, offer_what_is_free, offer_too_late),
]
