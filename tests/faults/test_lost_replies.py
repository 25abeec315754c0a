"""Replies that are lost, late or cut short, at each step, in both of memcached's protocols.

The invariants: no lease of another client is ever ended, and a lock that is ours is known to be
ours. tests/unit/lock/test_protocol_faults.py has each step of each verb.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

import userlock
from tests.faults.conftest import Commands
from tests.faults.proxy import Fault, FaultProxy
from tests.faults.tidy import tidy_up
from tests.leases import record_of, taken
from userlock.lock.lease import Granted, Lost, Priority, Released
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.record import Record
from userlock.lock.store import StoreUnavailable
from userlock.stores import MemcacheStore
from userlock.stores.pool import REPLY_TIMEOUT
from userlock.testing import make_claim

#: The faults after which a command has been executed, or never will be.
FAULTS = [fault for fault in Fault if fault is not Fault.DELAY]
#: The faults after which the caller waits for the whole reply timeout.
SLOW = [Fault.DROP_REPLY, Fault.SWALLOW]
CARRIED_OUT = [Fault.DROP_REPLY, Fault.CUT_AFTER, Fault.CUT_REPLY]


class TestTaking:
    @pytest.mark.parametrize(
        ("fault", "priority"),
        [*((fault, Priority.INTERACTIVE) for fault in FAULTS), (Fault.DROP_REPLY, Priority.BATCH)],
    )
    def test_a_lock_with_a_lost_grant_is_ours(
        self,
        proxy: FaultProxy,
        commands: Commands,
        leases: LeaseProtocol,
        direct: MemcacheStore,
        fault: Fault,
        priority: Priority,
    ) -> None:
        claim = make_claim(priority=priority)
        started = time.monotonic()
        with proxy.fault(commands.create, fault):
            lease = taken(leases.take(claim))
        assert time.monotonic() - started < REPLY_TIMEOUT + 0.5
        assert record_of(direct, claim.lock_id).holder == claim.holder
        assert leases.release(lease) == Released()
        assert direct.read(claim.lock_id) is None

    def test_without_looking_it_would_block_until_it_runs_out(
        self,
        proxy: FaultProxy,
        commands: Commands,
        leases: LeaseProtocol,
        direct: MemcacheStore,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The negative control: a caller that takes an error for "held" waits for itself."""
        monkeypatch.setattr(leases, "_take_after", lambda *_: None)
        claim = make_claim()
        with proxy.fault(commands.create, Fault.DROP_REPLY):
            assert leases.take(claim) is None
        assert record_of(direct, claim.lock_id).holder == claim.holder

    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_lock_that_another_holds_is_not_ours(
        self,
        proxy: FaultProxy,
        commands: Commands,
        leases: LeaseProtocol,
        theirs: LeaseProtocol,
        fault: Fault,
    ) -> None:
        holder = make_claim()
        taken(theirs.take(holder))
        before = theirs.store.read(holder.lock_id)
        with proxy.fault(commands.create, fault):
            assert leases.take(make_claim()) is None
        after = theirs.store.read(holder.lock_id)
        assert before is not None
        assert after is not None
        assert after.record == before.record


class TestStandingInLine:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_waiter_is_queued_once_at_most(
        self,
        proxy: FaultProxy,
        commands: Commands,
        leases: LeaseProtocol,
        theirs: LeaseProtocol,
        fault: Fault,
    ) -> None:
        """A line is repeated after a break, and may then be there twice."""
        taken(theirs.take(make_claim()))
        claim = make_claim()
        with proxy.fault(commands.append, fault):
            if fault in SLOW:
                with pytest.raises(StoreUnavailable):
                    leases.join(claim)
            else:
                record = leases.join(claim)
                assert record is not None
                assert record.position_of(claim.token) == 0
        waiters = record_of(theirs.store, claim.lock_id).waiters()
        assert [each.token for each in waiters] == [claim.token] * (fault is not Fault.SWALLOW)

    @pytest.mark.parametrize("fault", FAULTS)
    def test_the_next_waiter_takes_over_once(
        self,
        proxy: FaultProxy,
        commands: Commands,
        leases: LeaseProtocol,
        theirs: LeaseProtocol,
        fault: Fault,
    ) -> None:
        lease = taken(theirs.take(make_claim()))
        claim, behind = make_claim(), make_claim()
        leases.join(claim)
        theirs.join(behind)
        assert theirs.release(lease) == Released()
        record = leases.look(claim.lock_id)
        assert record is not None
        assert record.free
        with proxy.fault(commands.swap, fault):
            if fault in CARRIED_OUT:
                mine = taken(leases.claim(claim, record, passing=False))
            elif fault is Fault.SWALLOW:
                # For all that the caller knows, it may still be executed.
                with pytest.raises(StoreUnavailable):
                    leases.claim(claim, record, passing=False)
            else:
                assert leases.claim(claim, record, passing=False) is None
        after = record_of(theirs.store, claim.lock_id)
        assert after.position_of(behind.token) == (0 if fault in CARRIED_OUT else 1)
        if fault in CARRIED_OUT:
            assert after.holder.token == claim.token
            assert leases.release(mine) == Released()
            assert record_of(theirs.store, claim.lock_id).position_of(behind.token) == 0


class TestKeeping:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_an_extension_that_is_not_confirmed_is_made_up_for_by_the_next(
        self, proxy: FaultProxy, commands: Commands, leases: LeaseProtocol, fault: Fault
    ) -> None:
        lease = taken(leases.take(make_claim()))
        with proxy.fault(commands.swap, fault), pytest.raises(StoreUnavailable):
            leases.extend(lease, 30)
        outcome = leases.extend(lease, 30)
        assert isinstance(outcome, Granted)
        assert leases.release(outcome.lease) == Released()
        assert leases.look(lease.lock_id) is None


class TestGivingBack:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_release_with_a_lost_reply_is_executed(
        self,
        proxy: FaultProxy,
        commands: Commands,
        leases: LeaseProtocol,
        direct: MemcacheStore,
        fault: Fault,
    ) -> None:
        lease = taken(leases.take(make_claim()))
        with proxy.fault(commands.remove, fault):
            assert leases.release(lease) == Released()
        assert direct.read(lease.lock_id) is None

    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_release_to_a_waiter_with_a_lost_reply_is_executed(
        self,
        proxy: FaultProxy,
        commands: Commands,
        leases: LeaseProtocol,
        theirs: LeaseProtocol,
        fault: Fault,
    ) -> None:
        lease = taken(leases.take(make_claim()))
        waiter = make_claim()
        theirs.join(waiter)
        with proxy.fault(commands.append, fault):
            assert leases.release(lease) == Released()
        record = theirs.look(lease.lock_id)
        assert record is not None
        assert (record.free, record.position_of(waiter.token)) == (True, 0)
        taken(theirs.claim(waiter, record, passing=False))

    @pytest.mark.parametrize("fault", CARRIED_OUT)
    def test_a_release_followed_by_other_holders_is_not_called_a_loss(
        self,
        proxy: FaultProxy,
        commands: Commands,
        leases: LeaseProtocol,
        theirs: LeaseProtocol,
        monkeypatch: pytest.MonkeyPatch,
        fault: Fault,
    ) -> None:
        """If the line were repeated, its record would be missing: apparently lost.

        we                       memcached                 next waiter append "= our token" ──▶ free
               (reply lost)      taken over, and removed ◀ swap, remove
        check ─────────────────▶ no record: unknown
        """
        lease = taken(leases.take(make_claim()))
        waiter = make_claim()
        theirs.join(waiter)
        look = leases.look

        def next_one_comes_and_goes_first(lock_id: str, **options: Any) -> Record | None:
            record = record_of(theirs.store, lock_id)
            theirs.release(taken(theirs.claim(waiter, record, passing=False)))
            return look(lock_id, **options)

        monkeypatch.setattr(leases, "look", next_one_comes_and_goes_first)
        with proxy.fault(commands.append, fault), pytest.raises(StoreUnavailable):
            leases.release(lease)
        assert theirs.look(lease.lock_id) is None

    @pytest.mark.parametrize("fault", [Fault.CUT_AFTER, Fault.CUT_BEFORE])
    def test_one_after_the_connection_broke_leaves_the_next_owner_alone(
        self,
        proxy: FaultProxy,
        commands: Commands,
        leases: LeaseProtocol,
        theirs: LeaseProtocol,
        fault: Fault,
    ) -> None:
        lease = taken(leases.take(make_claim()))
        mine = record_of(theirs.store, lease.lock_id)
        assert theirs.store.remove(lease.lock_id, mine.stored.version)
        successor = make_claim()
        theirs_to_keep = taken(theirs.take(successor))
        outcome: object = None
        with proxy.fault(commands.remove, fault), contextlib.suppress(StoreUnavailable):
            outcome = leases.release(lease)
        assert outcome in (Lost("taken", successor.holder), None), "at best the outcome is unknown"
        after = record_of(theirs.store, lease.lock_id)
        assert (after.holder, after.free) == (successor.holder, False)
        assert theirs.release(theirs_to_keep) == Released()


def test_a_whole_lock_with_every_step_failing_once(
    proxy: FaultProxy, commands: Commands, store: MemcacheStore
) -> None:
    service = userlock.LockService(store)
    proxy.faults.update(
        {
            commands.create: Fault.DROP_REPLY,
            commands.read: Fault.CUT_AFTER,
            commands.remove: Fault.CUT_REPLY,
        }
    )
    lease = service.acquire("learner-1")
    service.release(lease)
    tidy_up(service)
    assert store.read("learner-1") is None


def test_a_command_that_arrives_after_all_is_tidied_up(
    proxy: FaultProxy, commands: Commands, store: MemcacheStore, direct: MemcacheStore
) -> None:
    """Sent, with a lost reply, retried, granted, released: and then the first one arrives."""
    service = userlock.LockService(store)
    with proxy.fault(commands.create, Fault.DELAY):
        lease = service.acquire("learner-1")
    assert not lease.degraded
    service.release(lease)
    proxy.deliver()
    deadline = time.monotonic() + 5
    while direct.read("learner-1") is None:
        assert time.monotonic() < deadline, "the late command did not arrive"
    while direct.read("learner-1") is not None:
        service.release(service.acquire("another"))
        assert time.monotonic() < deadline, "no holder, but it stays locked"


def test_a_connection_that_was_interrupted_is_not_used_again(
    store: MemcacheStore, leases: LeaseProtocol, theirs: LeaseProtocol
) -> None:
    """Its late reply ("HD …") would be taken for the reply to the next command."""

    class Stop(BaseException):
        pass

    taken(theirs.take(make_claim("held")))
    (connection,) = store.connections.idle

    class Interrupted:
        def __init__(self, sock: Any) -> None:
            self._sock = sock

        def recv(self, *_: object) -> bytes:
            raise Stop

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sock, name)

    connection._socket = Interrupted(connection._socket)
    with pytest.raises(Stop):
        leases.take(make_claim("free"))
    assert leases.take(make_claim("held")) is None


class TestTheServersTime:
    """It is asked for again now and then, before a record is stored."""

    @pytest.mark.parametrize("fault", FAULTS)
    def test_nothing_was_asked_for_yet_when_it_is_lost(
        self, proxy: FaultProxy, store: MemcacheStore, fault: Fault
    ) -> None:
        """A connection that has ended is made again; a server that hangs is waited for once."""
        (connection,) = store.connections.idle
        connection.time.good_until = 0.0
        started = time.monotonic()
        with proxy.fault(b"stats", fault):
            if fault in SLOW:
                with pytest.raises(StoreUnavailable) as caught:
                    store.create("ann", b"held", 60)
                assert not caught.value.sent
            else:
                assert store.create("ann", b"held", 60) is not None
        assert time.monotonic() - started < REPLY_TIMEOUT + 0.5
        assert proxy.seen[-1].startswith(b"stats") == (fault in SLOW)
