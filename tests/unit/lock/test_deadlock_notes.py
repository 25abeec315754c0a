"""The waiters' notes: apparent cycles, outages, and cleaning up."""

from __future__ import annotations

from unittest import mock

import pytest

import userlock
from tests.leases import existing
from tests.simulation.rivals import Rival, Step, chain, run
from tests.simulation.world import World
from tests.unit.lock.pulse import Here, interrupt
from userlock import DeadlockDetected, LockService, LockTimeout, waits
from userlock.lock import deadlock as circle_module
from userlock.lock.record import BlockedOn, Record, blocked
from userlock.lock.store import StoreUnavailable
from userlock.stores import MemoryStore
from userlock.testing import make_claim


def blocked_on(world: World, lock_id: str) -> BlockedOn | None:
    """Return the wait that the holder of a lock has noted."""
    stored = world.watch.store.read(lock_id)
    return None if stored is None else Record(stored).blocked_on


class TestNoCycle:
    def test_a_cycle_of_others_that_never_ends(self, world: World) -> None:
        """They are paused. Following the cycle ends, each time."""
        a = Rival(world, "host/a", [Step("a"), Step("b", after=0.1)], wall_ahead=60)
        b = Rival(world, "host/b", [Step("b"), Step("a", after=0.2)])
        world.pass_time(0.211)
        assert blocked_on(world, "b") is not None
        for rival in (a, b):
            assert rival.waits_for is not None
            rival.process.paused = True
        third = Rival(world, "host/c", [Step("c"), Step("a")], wait_timeout=2.0)
        run(world, third)
        assert isinstance(third.error, LockTimeout)

    @pytest.mark.parametrize(("after", "error"), [(1.2, type(None)), (0.5, DeadlockDetected)])
    def test_one_that_died_is_a_link_until_its_lease_is_over(
        self, world: World, after: float, error: type
    ) -> None:
        """Until then it looks like a live one: a limit of the scheme."""
        a = Rival(world, "host/a", [Step("a"), Step("b", after=0.1)], lock_timeout=1.0)
        b = Rival(world, "host/b", [Step("b"), Step("a", after=after)])
        world.pass_time(0.3)
        assert blocked_on(world, "a") is not None
        world.kill(a.process)
        run(world, b)
        assert type(b.error) is error

    def test_an_expired_lease_is_no_link_for_later_waiters(self, here: Here) -> None:
        """The lock is free, and another waiter is first in the queue, and slow."""
        with userlock.scope(here.service):
            userlock.acquire_lock("b")
            dead = here.service.acquire("a", lock_timeout=1)
            here.store.append("b", b'\n+i dead-waits 7.000 ["host/1","GET /"]')
            here.store.append("a", blocked(dead.token, BlockedOn("b", 7.0, "dead-waits")))
            waits.run(here.service.protocol.join, make_claim("a"))
            here.clock.advance(1)
            with userlock.global_lock("a", wait_timeout=1):
                pass

    def test_the_note_of_a_timed_out_waiter_is_no_link(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Even if it could not remove its note."""
        monkeypatch.setattr(circle_module.DeadlockWatch, "end", mock.AsyncMock())
        b = Rival(world, "host/b", [Step("b"), Step("a", after=1.0)], wait_timeout=1.0)
        a = Rival(world, "host/a", [Step("a"), Step("b", after=0.1)], wait_timeout=0.5)

        def stay(error: userlock.LockError) -> None:
            assert isinstance(error, LockTimeout)
            a.process.clock.sleep(1.5)

        a.refused = stay  # type: ignore[method-assign]
        world.pass_time(1.5)
        assert blocked_on(world, "a") is not None
        run(world, a, b)
        assert isinstance(b.error, LockTimeout)

    def test_a_note_with_an_unknown_token(self, service: LockService, store: MemoryStore) -> None:
        with userlock.scope(service):
            mine = userlock.acquire_lock("b").tenure._lease
            foreign = service.acquire("a")
            note = BlockedOn("b", foreign.deadline, "nobody")
            store.append("a", blocked(foreign.token, note))
            with pytest.raises(LockTimeout):
                userlock.acquire_lock("a", wait_timeout=1)
            # The control: a waiter with that name exists.
            store.append("b", f'\n+i nobody {foreign.deadline:.3f} ["host/1","GET /"]'.encode())
            with pytest.raises(DeadlockDetected):
                userlock.acquire_lock("a", wait_timeout=1)
            assert mine.token

    @pytest.mark.parametrize("twice", [True, False])
    def test_links_that_were_never_there_at_the_same_time(
        self, here: Here, monkeypatch: pytest.MonkeyPatch, twice: bool
    ) -> None:
        """While the chain is read, a waiter at its beginning leaves, then one at its end begins to
        wait."""
        if not twice:
            monkeypatch.setattr(
                circle_module.DeadlockWatch, "_find", circle_module.DeadlockWatch._follow
            )
        b, c, d = (here.service.acquire(lock_id) for lock_id in "xyz")
        read = here.store.read

        def in_between(lock_id: str, *, hurry: bool = False) -> object:
            if lock_id == "z" and here.service.waiters("w") == []:
                here.store.append("y", b"\n= b-waits")
                wait(d, "w", "d-waits")
            return read(lock_id, hurry=hurry)

        def wait(lease: userlock.Lease, lock_id: str, token: str) -> None:
            here.store.append(lock_id, f'\n+i {token} 7.000 ["host/1","GET /"]'.encode())
            here.store.append(lease.lock_id, blocked(lease.token, BlockedOn(lock_id, 7.0, token)))

        with userlock.scope(here.service):
            userlock.acquire_lock("w")
            wait(b, "y", "b-waits")
            wait(c, "z", "c-waits")
            monkeypatch.setattr(here.store, "read", in_between)
            error = LockTimeout if twice else DeadlockDetected
            with pytest.raises(error):
                userlock.acquire_lock("x", wait_timeout=1)

    def test_garbage_in_a_record(self, service: LockService, store: MemoryStore) -> None:
        with userlock.scope(service):
            userlock.acquire_lock("b")
            foreign = service.acquire("a").token
            for what in ("null", "[]", "7", '["b"]', '["b",NaN,"x"]', '[["b"],1,2]', "{", '"'):
                store.append("a", f"\n! {foreign} {what}".encode())
                with pytest.raises(LockTimeout):
                    userlock.acquire_lock("a", wait_timeout=0.1)


class TestNotes:
    def test_a_short_wait_costs_nothing_more(self, world: World) -> None:
        Rival(world, "host/b", [Step("b")], work=0.008)
        a = Rival(world, "host/a", [Step("a"), Step("b", after=0.001)])
        run(world, a)
        assert a.served
        lines = world.watch.store.asked["append"]
        assert lines <= 3, "joining the queue, and two releases: no notes"

    def test_a_longer_wait_is_noted_and_the_note_removed(self, world: World) -> None:
        b = Rival(world, "host/b", [Step("b")], work=1.0)
        a = Rival(world, "host/a", [Step("a"), Step("aa"), Step("b", after=0.1)], work=1.0)
        world.pass_time(0.105)
        assert blocked_on(world, "a") is None
        world.pass_time(0.01)
        for lock_id in ("a", "aa"):
            note = existing(blocked_on(world, lock_id))
            assert (note.lock_id, note.since) == ("b", a.waits_since)
        run(world, b)
        world.pass_time(0.2)
        assert a.served
        assert blocked_on(world, "a") is None
        assert blocked_on(world, "aa") is None
        run(world, a)

    def test_the_note_is_removed_after_a_timeout(self, world: World) -> None:
        b = Rival(world, "host/b", [Step("b")], work=5.0)
        a = Rival(world, "host/a", [Step("a"), Step("b", after=0.1)], wait_timeout=0.5)
        seen = []
        a.refused = lambda error: seen.append(blocked_on(world, "a"))  # type: ignore[method-assign]
        world.pass_time(0.5)
        assert blocked_on(world, "a") is not None
        run(world, a, b)
        assert seen == [None]

    def test_the_note_is_removed_after_an_interrupt(self, here: Here) -> None:
        here.service.acquire("b")
        with userlock.scope(here.service):
            mine = userlock.acquire_lock("a").tenure
            here.clock.after(0.3, interrupt)
            with pytest.raises(KeyboardInterrupt):
                userlock.acquire_lock("b")
            stored = existing(here.store.read("a"))
            assert Record(stored).blocked_on is None
            assert b"! " in stored.record, "it had been there"
            assert mine.held
        assert here.service.waiters("b") == []

    def test_a_lease_that_is_renewed_meanwhile_keeps_it(self, here: Here) -> None:
        notes = []
        here.service.acquire("b")
        userlock.configure(service=here.service)
        with userlock.global_lock("a", heartbeat=True, lock_timeout=3) as lock:
            here.clock.after(1.5, here.service.renewals.run_due)
            here.clock.after(1.6, lambda: notes.append(note_of(here.service, "a")))
            with pytest.raises(LockTimeout):
                userlock.global_lock("b", wait_timeout=2).__enter__()
            assert lock.expires_in > 2
            assert note_of(here.service, "a") is None
        assert [note.lock_id for note in notes if note is not None] == ["b"]


class TestOutages:
    def test_a_degraded_lease_is_not_noted(self, here: Here) -> None:
        userlock.configure(service=here.service)
        here.store.go_down()
        with userlock.global_lock("a") as lock:
            assert lock.degraded
            here.store.come_back()
            here.clock.advance(5)
            holder = here.service.acquire("b")
            other = here.service.acquire("a")
            here.store.append("a", blocked(other.token, BlockedOn("b", 0.0, "x")))
            with pytest.raises(LockTimeout):
                userlock.global_lock("b", wait_timeout=1).__enter__()
            assert holder.token
        assert lock._lease.token.encode() + b" [" not in existing(here.store.read("a")).record

    def test_a_server_that_does_not_answer_for_a_lock_on_the_way(self, world: World) -> None:
        """The awaited lock is on another server: the wait goes on, and does not take the lock."""
        rivals = chain(world, "abc")
        last = rivals[-1].process
        read = last.wire.read

        def unavailable(lock_id: str, *, hurry: bool = False) -> object:
            if lock_id == "b" and world.clock.now() < 1001.0:
                raise StoreUnavailable("b's server is down", sent=False)
            return read(lock_id, hurry=hurry)

        last.wire.read = unavailable  # type: ignore[method-assign, assignment]
        world.pass_time(0.9)
        assert rivals[-1].waits_for == "a"
        assert rivals[-1].got == ["c"]
        run(world, *rivals)
        assert isinstance(rivals[-1].error, DeadlockDetected), "as soon as it answers again"
        assert all(rival.served for rival in rivals[:-1])

    def test_a_server_that_does_not_answer_for_a_lock_that_is_held(self, world: World) -> None:
        """A failed note is written when the server answers again; everything else meanwhile."""
        b = Rival(world, "host/b", [Step("b"), Step("aa", after=1.5)])
        a = Rival(world, "host/a", [Step("a"), Step("aa"), Step("b", after=0.1)], wall_ahead=60)
        append = a.process.wire.append

        def unavailable(lock_id: str, line: bytes) -> object:
            if lock_id == "a" and world.clock.now() < 1001.0:
                raise StoreUnavailable("a's server is down", sent=False)
            return append(lock_id, line)

        a.process.wire.append = unavailable  # type: ignore[method-assign, assignment]
        world.pass_time(0.4)
        assert blocked_on(world, "a") is None
        assert blocked_on(world, "aa") is not None
        world.pass_time(0.8)
        assert blocked_on(world, "a") is not None
        run(world, a, b)
        assert isinstance(a.error, DeadlockDetected)
        assert b.served


def note_of(service: LockService, lock_id: str) -> BlockedOn | None:
    record = service.look(lock_id)
    return None if record is None else record.blocked_on
