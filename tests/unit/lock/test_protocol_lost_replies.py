"""A lost reply while other clients act: unknown outcomes are reported as unknown."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from tests.leases import Leases, taken
from userlock.lock.lease import Lease, Lost, Released
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.store import Stored, StoreUnavailable
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim


@pytest.fixture
def leases(store: MemoryStore, clock: ManualClock) -> Leases:
    return Leases(store, clock)


class TestReleases:
    def test_a_remove_in_doubt_whose_lock_has_others_now(
        self, store: MemoryStore, leases: Leases
    ) -> None:
        """It was removed, then taken by another: that is no loss. But it is not known to be a
        release.
        """
        lease = taken(leases.take(make_claim()))
        store.lose_reply("remove")
        store.before("read", lambda: leases.take(make_claim()))
        with pytest.raises(StoreUnavailable):
            leases.release(lease)

    def test_a_line_in_doubt_whose_record_has_gone(
        self, store: MemoryStore, leases: Leases
    ) -> None:
        """The next waiter has taken and left it."""
        lease = taken(leases.take(make_claim()))._replace(contended=True)
        store.lose_reply("append")
        store.before("read", lambda: next_one_comes_and_goes(leases))
        with pytest.raises(StoreUnavailable):
            leases.release(lease)

    def test_a_remove_in_doubt_after_the_lease(
        self, store: MemoryStore, leases: Leases, clock: ManualClock
    ) -> None:
        """Others may have held the lock in between, and have left again."""
        lease = taken(leases.take(make_claim(ttl_seconds=1)))
        clock.advance(5)
        store.lose_command("remove")
        with pytest.raises(StoreUnavailable):
            leases.release(lease)

    def test_a_line_with_a_lost_reply_is_found_after_the_lease(
        self, store: MemoryStore, leases: Leases, clock: ManualClock
    ) -> None:
        """It was written in time, and no other client has held the lock since: that is no loss."""
        lease = taken(leases.take(make_claim(ttl_seconds=1)))._replace(contended=True)
        store.lose_reply("append")
        store.before("read", lambda: clock.advance(2))
        assert leases.release(lease) == Released()
        assert leases.look(lease.lock_id) is None

    def test_a_store_that_sends_lines_again_would_make_it_a_loss(self, clock: ManualClock) -> None:
        """The negative control of `test_a_line_in_doubt_whose_record_has_gone`."""

        class Resending(MemoryStore):
            between: Callable[[], object] = staticmethod(lambda: None)

            def append(self, lock_id: str, line: bytes) -> Stored | None:
                super().append(lock_id, line)  # its reply is lost, with the connection
                between, self.between = self.between, lambda: None
                between()
                return super().append(lock_id, line)

        store = Resending(clock=clock)
        leases = Leases(store, clock)
        lease = taken(leases.take(make_claim()))._replace(contended=True)
        store.between = lambda: next_one_comes_and_goes(leases)
        assert leases.release(lease) == Lost("forgotten", None)


class TestGrants:
    @pytest.mark.parametrize("verb", ["take", "begin"])
    def test_a_create_that_was_not_sent_is_not_looked_for(
        self, store: MemoryStore, leases: Leases, verb: str
    ) -> None:
        """Nothing is to be released later."""
        store.go_down(sent=False)
        with pytest.raises(StoreUnavailable) as caught:
            leases.take(make_claim()) if verb == "take" else leases.begin(make_claim(), None)
        assert not caught.value.sent


class TestLines:
    """Lines that may be repeated without harm are retried: joining, leaving, and notes."""

    @pytest.mark.parametrize("lost", [MemoryStore.lose_reply, MemoryStore.lose_command])
    def test_a_broken_connection(
        self, store: MemoryStore, leases: Leases, lost: Callable[[MemoryStore, str], None]
    ) -> None:
        taken(leases.take(make_claim()))
        first, second = make_claim(), make_claim()
        lost(store, "append")
        leases.join(first)
        record = leases.join(second)
        assert record is not None
        assert [each.token for each in record.waiters()] == [first.token, second.token]
        lost(store, "append")
        leases.leave(first.lock_id, first.token)
        record = leases.look(first.lock_id)
        assert record is not None
        assert [each.token for each in record.waiters()] == [second.token]

    def test_a_time_out_is_not_waited_for_twice(self, store: MemoryStore, leases: Leases) -> None:
        taken(leases.take(make_claim()))
        store.lose_command("append", slow=True)
        with pytest.raises(StoreUnavailable):
            leases.join(make_claim())
        assert store.asked["append"] == 1

    def test_a_server_that_is_gone_by_then_may_have_got_the_first(
        self, store: MemoryStore, leases: Leases
    ) -> None:
        """So a waiter that timed out has a position to give up."""
        taken(leases.take(make_claim()))
        store.lose_reply("append")
        store.before("append", lambda: store.before("append", lambda: store.go_down(sent=False)))
        with pytest.raises(StoreUnavailable) as caught:
            leases.join(make_claim())
        assert caught.value.sent


class TestErrors:
    """Exceptions are released once they are handled: outages leave nothing to collect."""

    @pytest.fixture(autouse=True)
    def without_a_collector(self) -> Iterator[None]:
        gc.disable()
        yield
        gc.enable()

    @staticmethod
    def trouble_with(leases: Leases, lease: Lease) -> weakref.ref[StoreUnavailable]:
        try:
            leases.release(lease)
        except StoreUnavailable as trouble:
            return weakref.ref(trouble)
        raise AssertionError("it was released")

    @pytest.mark.parametrize("sent", [True, False])
    def test_of_a_store_that_is_down(self, store: MemoryStore, leases: Leases, sent: bool) -> None:
        lease = taken(leases.take(make_claim()))
        store.go_down(sent=sent)
        assert self.trouble_with(leases, lease)() is None

    def test_of_what_is_not_known(self, store: MemoryStore, leases: Leases) -> None:
        lease = taken(leases.take(make_claim()))
        store.lose_reply("remove")
        store.before("read", lambda: leases.take(make_claim()))
        assert self.trouble_with(leases, lease)() is None

    def test_one_that_is_raised_where_it_is_an_argument_would_stay(
        self, store: MemoryStore, leases: Leases, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""

        async def raised(
            leases: LeaseProtocol, trouble: StoreUnavailable, *_: object, **__: object
        ) -> None:
            raise trouble

        monkeypatch.setattr(LeaseProtocol, "_end_after", raised)
        lease = taken(leases.take(make_claim()))
        store.go_down()
        assert self.trouble_with(leases, lease)() is not None


def next_one_comes_and_goes(leases: Leases) -> None:
    """Let another client take over the free lock and release it."""
    record = leases.look("learner-1")
    assert record is not None
    leases.release(taken(leases.claim(make_claim(), record, passing=False)))
