"""Waiters of one process share their readings of a record."""

from __future__ import annotations

import functools
import itertools

import pytest

from tests.leases import record_of
from tests.simulation.watch import Watch
from tests.simulation.world import Process, ProcessClock, World
from tests.unit.lock.logs import Log, a_holder, new_nonce
from userlock import DeadlockDetected, LockPolicy, LockService, LockTimeout, PriorityPolicy
from userlock.errors import LockError
from userlock.lock import local_waiters, waiting
from userlock.lock.lease import Claim, Lease, Priority
from userlock.lock.local_waiters import LocalWaiters, Reading
from userlock.lock.record import MOST_WAITERS, Record, done, joining
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim
from userlock.waits import Bell, run


@pytest.mark.parametrize("shared", [True, False])
def test_one_polls_for_all(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """Without sharing, the negative control, each polls for itself."""
    if not shared:
        monkeypatch.setattr(LocalWaiters, "latest", lambda *_: None)
        monkeypatch.setattr(LocalWaiters, "is_woken", lambda *_: False)
    alone, crowd = _reads(clock, 1), _reads(clock, 12)
    assert alone > 50
    if shared:
        assert crowd < alone * 1.3
    else:
        assert crowd > alone * 2


def test_a_reading_of_a_free_lock_wakes_the_first_waiter(
    service: LockService, store: MemoryStore, clock: ManualClock
) -> None:
    """Not the others, and not the one that read it."""
    lease = service.acquire("ann")
    local = LocalWaiters(clock)
    bells = _queued(service, local)
    second, _ = bells["second"]
    local.tell(second, Reading(record_of(store, "ann"), clock.now()))
    assert _rung(bells) == []
    service.release(lease)
    local.tell(second, Reading(record_of(store, "ann"), clock.now()))
    assert _rung(bells) == ["first"]


def test_the_first_of_a_process_polls_for_the_rest_until_it_leaves(
    service: LockService, store: MemoryStore, clock: ManualClock
) -> None:
    """Then the next one is to ring, which takes over. One of another process rings nobody here."""
    service.acquire("ann")
    run(service.protocol.join, make_claim("ann"))
    local = LocalWaiters(clock)
    bells = _queued(service, local)
    record = record_of(store, "ann")
    first, second = (claim for claim, _ in list(bells.values())[:2])
    local.tell(first, Reading(record, clock.now()))
    assert [local.is_woken(claim, record) for claim, _ in bells.values()] == [False, True, True]
    assert local.leave(first) is bells["second"][1]
    assert not local.is_woken(second, record)


@pytest.mark.parametrize("wakes", [True, False])
def test_who_leaves_wakes_nobody_where_the_store_does(clock: ManualClock, wakes: bool) -> None:
    """Otherwise the next one counts a short hold as a lost wake-up. Without wake-ups it polls."""
    store = MemoryStore(clock=clock, wakes=wakes)
    service = LockService(store, clock=clock)
    lease, claim, bell = service.acquire("ann"), make_claim("ann"), Bell()

    def queue() -> None:
        record = run(service.protocol.join, claim)
        service.local_waiters.enter(claim, bell)
        service.local_waiters.tell(claim, Reading(record, clock.now()))

    clock.after(0.01, queue)
    clock.after(0.02, lambda: service.release(lease))
    service.acquire("ann")
    assert bell.rung is not wakes


def _queued(service: LockService, local: LocalWaiters) -> dict[str, tuple[Claim, Bell]]:
    bells = {}
    for name in ("first", "second", "third"):
        claim = make_claim("ann")
        run(service.protocol.join, claim)
        bells[name] = claim, Bell()
        local.enter(*bells[name])
    return bells


def _rung(bells: dict[str, tuple[Claim, Bell]]) -> list[str]:
    return [name for name, (_, bell) in bells.items() if bell.rung]


def test_who_has_released_to_others_queues_a_moment_later(
    service: LockService, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their claim would be refused if the record changed meanwhile."""
    lease = service.acquire("ann")
    run(service.protocol.join, make_claim("ann"))
    service.release(lease)
    released_at, joined_at, join = clock.now(), [], service.protocol.join

    async def noted(claim: Claim, *, again: bool = False) -> Record | None:
        joined_at.append(clock.now())
        return await join(claim, again=again)

    monkeypatch.setattr(service.protocol, "join", noted)
    with pytest.raises(LockTimeout):
        service.acquire("ann", wait_timeout=0.1)
    assert joined_at == [pytest.approx(released_at + 0.001)]


def test_an_older_reading_changes_nothing(clock: ManualClock) -> None:
    local, claim = LocalWaiters(clock), make_claim("ann")
    local.enter(claim, Bell())
    local.tell(claim, Reading(None, 2.0))
    local.tell(claim, Reading(None, 1.0))
    assert local.latest("ann") == Reading(None, 2.0)
    local.leave(claim)
    assert local.latest("ann") is None


def test_releases_to_others_are_not_remembered_without_limit(clock: ManualClock) -> None:
    local = LocalWaiters(clock)
    for number in range(local_waiters._MOST_KEPT + 1):
        local.expect_queue(str(number))
    assert local.expects_queue(str(number))
    assert not local.expects_queue("0")


@pytest.mark.parametrize("many", [100, 0.1], ids=["few", "a crowd that sleeps long"])
def test_batch_that_shares_readings_ages(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, many: float
) -> None:
    """It tells the record so itself, although another waiter of its process polls for it."""
    monkeypatch.setattr(waiting, "_MANY_WAITERS", many)
    policy = LockPolicy(batch=PriorityPolicy(wait_timeout=60, ages_after=0.4))
    store = MemoryStore(clock=clock, wakes=False)
    with World(clock, Watch(store, clock), policy=policy).running() as world:
        other, web = world.process("other/web"), world.process("host/web")
        world.spawn(other, "holder", lambda: other.service.acquire("ann"))
        for priority in ("interactive", "batch"):
            take = functools.partial(web.service.acquire, "ann", priority=priority)
            world.spawn(web, priority, take)
        world.pass_time(0.3)
        assert [each.aged for each in record_of(store, "ann").waiters()] == [False, False]
        world.pass_time(0.3)
        assert sorted(each.aged for each in record_of(store, "ann").waiters()) == [False, True]


def test_batch_has_places_of_its_own_in_the_queue(clock: ManualClock) -> None:
    """Half as many. Who leaves lets the next one of its priority in."""
    local, bells = LocalWaiters(clock, 4), {}

    def come(priority: Priority) -> bool:
        claim = make_claim("ann", priority=priority)
        bells[claim.token] = claim, Bell()
        return local.enter(claim, bells[claim.token][1], at_once=False)

    def leave(number: int) -> list[int]:
        local.leave(list(bells.values())[number][0])
        return [at for at, (_, bell) in enumerate(bells.values()) if bell.rung]

    assert [come(Priority.BATCH) for _ in range(3)] == [True, True, False]
    assert [come(Priority.INTERACTIVE) for _ in range(5)] == [True, True, True, True, False]
    assert leave(3) == [7]
    assert leave(0) == [2, 7]
    for number in (1, 2, 4, 5, 6, 7):
        leave(number)
    assert local.crowds == {}


@pytest.mark.parametrize(
    ("processes", "at_once", "queued"),
    [
        *((number, False, most) for number, most in [(0, 67), (1, 67), (2, 45), (9, 14), (200, 1)]),
        (9, True, MOST_WAITERS),
    ],
)
def test_a_process_leaves_room_for_another_one(
    clock: ManualClock, processes: int, at_once: bool, queued: int
) -> None:
    """In the record as it was read last. Holders of other locks fill it, and do no more."""
    log, local = Log(a_holder("holder")), LocalWaiters(clock)
    log.joined_by(*map(str, range(processes)), process="one each")
    for number in range(MOST_WAITERS + 9):
        bell, claim = Bell(), make_claim("ann")
        if number == 0:
            local.enter(claim, bell, at_once=True)
            local.tell(claim, Reading(log.record, 1.0))
        elif not local.enter(claim, bell, at_once=at_once):
            break
    assert number == queued


@pytest.mark.parametrize("steps", [True, False])
def test_a_record_without_room_keeps_no_crowd_busy(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, steps: bool
) -> None:
    """One tries for all. If each does, the negative control, they ask much more."""
    if not steps:
        monkeypatch.setattr(LocalWaiters, "step_out", lambda *_: False)
    store = MemoryStore(clock=clock, wakes=False)
    with World(clock, Watch(store, clock)).running() as world:
        other, web = world.process("other/web"), world.process("host/web")

        def fill() -> None:
            other.service.acquire("ann")
            for _ in range(MOST_WAITERS):
                run(other.service.protocol.join, make_claim("ann"))

        world.spawn(other, "holder", fill)
        world.pass_time(0.1)
        for number in range(10):
            world.spawn(web, str(number), lambda: web.service.acquire("ann", wait_timeout=60))
        store.asked.clear()
        world.pass_time(5)
        assert (store.asked["read"] < 1000) is steps


def test_a_holder_of_other_locks_does_not_step_out(clock: ManualClock) -> None:
    """Others may be waiting for it: it queues as soon as it can, and the deadlock is found."""
    store = MemoryStore(clock=clock, wakes=False)
    claims = [make_claim("ann") for _ in range(MOST_WAITERS)]
    held: dict[str, Lease] = {}
    ends: list[type[LockError]] = []

    def fill() -> None:
        held["ann"] = other.service.acquire("ann", lock_timeout=300)
        for claim in claims:
            run(other.service.protocol.join, claim)

    def take(process: Process, lock: str, *holding: str) -> None:
        try:
            leases = [held[each] for each in holding]
            held[lock] = process.service.acquire(lock, wait_timeout=60, holding=leases)
        except LockError as error:
            ends.append(type(error))

    with World(clock, Watch(store, clock)).running() as world:
        other, web = world.process("other/web"), world.process("host/web")
        world.spawn(other, "holder", fill)
        for name, wants in (("bob", ["bob"]), ("plain", ["ann"]), ("both", ["ann", "bob"])):
            world.spawn(web, name, functools.partial(take, web, *wants))
            world.pass_time(0.2)
        world.spawn(other, "cycle", functools.partial(take, other, "bob", "ann"))
        world.pass_time(1)
        for claim in claims[:50]:
            store.append("ann", done(claim.token))
        world.pass_time(10)
    assert ends == [DeadlockDetected]


def test_one_that_steps_out_is_the_next_of_its_priority(clock: ManualClock) -> None:
    """As long as one of them is left to try. A later caller does not pass it."""
    log, local = Log(a_holder("holder")), LocalWaiters(clock)
    log.joined_by(*map(str, range(MOST_WAITERS)), nonce=new_nonce())
    waiters = [(make_claim("ann", priority=each), Bell()) for each in Priority for _ in range(2)]
    (first, _), (second, waits), (job, bell), (last_job, _) = waiters
    for each in waiters:
        local.enter(*each)
    assert local.step_out(second, waits)
    assert not local.step_out(first, Bell())
    assert local.step_out(job, bell)
    late, late_bell = make_claim("ann"), Bell()
    assert not local.enter(late, late_bell, at_once=False)
    local.tell(first, Reading(log.record, 1.0))
    assert not waits.rung
    local.leave(last_job)
    assert (waits.rung, bell.rung, late_bell.rung) == (True, True, False)


def test_those_outside_queue_as_soon_as_the_record_has_room(clock: ManualClock) -> None:
    """As many as it has room for, and before a newcomer."""
    log, local = Log(a_holder("holder")), LocalWaiters(clock)
    log.joined_by(*map(str, range(MOST_WAITERS)), process="one each")
    first, others = make_claim("ann"), [(make_claim("ann"), Bell()) for _ in range(5)]
    local.enter(first, Bell())
    local.tell(first, Reading(log.record, 1.0))
    assert not any(local.enter(claim, bell, at_once=False) for claim, bell in others)
    log = Log(log.holder).joined_by(*map(str, range(MOST_WAITERS - 3)), nonce=new_nonce())
    local.tell(first, Reading(log.record, 2.0))
    assert [bell.rung for _, bell in others] == [True, True, True, False, False]
    assert not local.enter(make_claim("ann"), Bell(), at_once=False)


def test_who_steps_out_rings_the_one_that_comes_first_now(clock: ManualClock) -> None:
    """It was led, and sleeps long."""
    log, local = Log(a_holder("holder")), LocalWaiters(clock)
    first, second, bell = make_claim("ann"), make_claim("ann"), Bell()
    local.enter(first, Bell())
    local.enter(second, bell)
    log.add(joining(second.holder))
    local.tell(first, Reading(log.record, 1.0))
    assert local.step_out(first, Bell())
    assert bell.rung


@pytest.mark.parametrize("many", [10, 100])
def test_crowds_at_many_locks_wake_up_seldom(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """Each by the number of all. Otherwise, the negative control, they keep their process busy."""
    monkeypatch.setattr(waiting, "_MANY_WAITERS", many)
    slept, sleep = [], ProcessClock.sleep

    def sleeping(self: ProcessClock, seconds: float) -> None:
        slept.append(seconds)
        sleep(self, seconds)

    monkeypatch.setattr(ProcessClock, "sleep", sleeping)
    with World(clock, Watch(MemoryStore(clock=clock, wakes=False), clock)).running() as world:
        web = world.process("host/web")
        for lock, number in itertools.product(range(5), range(8)):
            take = functools.partial(web.service.acquire, f"learner-{lock}", wait_timeout=60)
            world.spawn(web, f"{lock}/{number}", take)
        world.pass_time(2)
        slept.clear()
        world.pass_time(20)
    # 35 wait, five of them first; the others slept for half a second without that.
    assert (len([each for each in slept if each > 0.3]) < 700) is (many == 10)


def _reads(clock: ManualClock, waiters: int) -> int:
    store = MemoryStore(clock=clock, wakes=False)
    with World(clock, Watch(store, clock)).running() as world:
        other, web = world.process("other/web"), world.process("host/web")
        reads = []

        def hold() -> None:
            lease = other.service.acquire("ann")
            other.clock.sleep(2)
            reads.append(store.asked["read"])
            other.service.release(lease)

        def wait() -> None:
            web.clock.sleep(0.001)
            web.service.release(web.service.acquire("ann", wait_timeout=10))

        actors = [world.spawn(other, "holder", hold)]
        actors += [world.spawn(web, f"waiter {number}", wait) for number in range(waiters)]
        world.pass_time(10, until=lambda: all(actor.finished for actor in actors))
        assert world.watch.violations == []
        return int(reads[0])
