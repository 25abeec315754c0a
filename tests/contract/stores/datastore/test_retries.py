"""Retries of a verb, and their duration, when its RPCs fail or others are faster."""

from __future__ import annotations

import grpc
import pytest

from tests.contract.stores.datastore.cases import CASES, STEPS, Case, fails
from tests.contract.stores.datastore.conftest import read
from tests.contract.stores.datastore.faulty import FaultyClient, lost, preceded_by, refused
from userlock.lock.store import RecordBusy, StoreUnavailable
from userlock.stores.datastore import TIMEOUT, DatastoreStore
from userlock.testing import ManualClock

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
SLOW = grpc.StatusCode.DEADLINE_EXCEEDED


class TestAppend:
    """`append` keeps its promise when its RPCs are sent again."""

    def test_a_lost_reply(
        self, faulty: FaultyClient, faulty_store: DatastoreStore, store: DatastoreStore
    ) -> None:
        store.create("ann", b"first", 60)
        faulty.faults[:] = [None, lost(UNAVAILABLE)]
        stored = faulty_store.append("ann", b"\nline")
        assert faulty.calls == ["lookup", "commit", "lookup"]
        assert stored is not None
        assert stored[:3] == read(store)[:3]
        assert stored.record == b"first\nline"
        assert store.remove("ann", stored.version)

    def test_a_lost_reply_and_another_line(
        self, faulty: FaultyClient, faulty_store: DatastoreStore, store: DatastoreStore
    ) -> None:
        """The outcome is unknown, and the line may be there twice, as the protocol has it."""
        store.create("ann", b"first", 60)
        faulty.faults[:] = [
            None,
            lost(UNAVAILABLE),
            preceded_by(lambda: store.append("ann", b"\nanother")),
        ]
        faulty_store.append("ann", b"\nline")
        assert read(store).record == b"first\nline\nanother\nline"

    @pytest.mark.parametrize("next_one", [None, b"next"])
    def test_a_lost_reply_and_another_life(
        self,
        faulty: FaultyClient,
        faulty_store: DatastoreStore,
        store: DatastoreStore,
        next_one: bytes | None,
    ) -> None:
        """The outcome is unknown; and the next holder's record is left alone."""
        store.create("ann", b"first", 60)

        def over_and_done_with() -> None:
            assert store.remove("ann", read(store).version)
            if next_one is not None:
                assert store.create("ann", next_one, 60) is not None

        faulty.faults[:] = [None, lost(UNAVAILABLE), preceded_by(over_and_done_with)]
        with pytest.raises(StoreUnavailable) as caught:
            faulty_store.append("ann", b"\nline")
        assert caught.value.sent
        left = store.read("ann")
        assert (None if left is None else left.record) == next_one

    def test_an_update_that_was_not_carried_out_is_sent_again(
        self, faulty: FaultyClient, faulty_store: DatastoreStore, store: DatastoreStore
    ) -> None:
        store.create("ann", b"first", 60)
        broken = refused(UNAVAILABLE, "Socket closed")
        faulty.faults[:] = [broken, None, broken]
        faulty_store.append("ann", b"\nline")
        assert faulty.calls == ["lookup", "lookup", "commit", "lookup", "commit"]
        assert read(store).record == b"first\nline"

    def test_an_abandoned_update_is_not_carried_out_later(
        self, faulty: FaultyClient, faulty_store: DatastoreStore, store: DatastoreStore
    ) -> None:
        store.create("ann", b"first", 60)
        fails(faulty, 1, faulty.late_fault(), lambda: faulty_store.append("ann", b"\nline"))
        faulty_store.append("ann", b"\nline")
        faulty.deliver()
        assert read(store).record == b"first\nline"

    def test_others_are_faster(
        self,
        faulty: FaultyClient,
        faulty_store: DatastoreStore,
        store: DatastoreStore,
        clock: ManualClock,
    ) -> None:
        store.create("ann", b"first", 60)
        faster = preceded_by(lambda: store.append("ann", b"\nfaster"))
        faulty.faults[:] = [None, faster, None, faster]
        stored = faulty_store.append("ann", b"\nline")
        assert stored is not None
        assert stored[:3] == read(store)[:3]
        assert faulty.calls == ["lookup", "commit"] * 3
        assert read(store).record == b"first\nfaster\nfaster\nline"
        assert len(clock.sleeps) == 2

    def test_without_the_version_a_line_would_be_lost(
        self, faulty: FaultyClient, faulty_store: DatastoreStore, store: DatastoreStore
    ) -> None:
        """The control of the test before."""
        store.create("ann", b"first", 60)

        def faster() -> None:
            store.append("ann", b"\nfaster")
            type(faulty.requests[-1]).pb(faulty.requests[-1]).mutations[0].ClearField(
                "base_version"
            )

        faulty.faults[:] = [None, preceded_by(faster)]
        faulty_store.append("ann", b"\nline")
        assert read(store).record == b"first\nline"

    def test_others_are_always_faster(
        self,
        faulty: FaultyClient,
        faulty_store: DatastoreStore,
        store: DatastoreStore,
        clock: ManualClock,
    ) -> None:
        store.create("ann", b"first", 60)
        faulty.faults[:] = [None, preceded_by(lambda: store.append("ann", b"\n."))] * 1000
        with pytest.raises(StoreUnavailable, match="others were faster") as caught:
            faulty_store.append("ann", b"\nline")
        assert isinstance(caught.value, RecordBusy)
        assert sum(clock.sleeps) <= 2 * TIMEOUT
        assert b"line" not in read(store).record


class TestContention:
    """ABORTED: nothing was done, and the commit is retried while there is time."""

    @pytest.mark.parametrize(("case", "step"), STEPS)
    def test_once_and_without_end(
        self,
        faulty: FaultyClient,
        faulty_store: DatastoreStore,
        store: DatastoreStore,
        clock: ManualClock,
        case: Case,
        step: int,
    ) -> None:
        version = case.prepare(store)
        aborted = refused(grpc.StatusCode.ABORTED, "contention")
        trouble = fails(faulty, step, aborted, lambda: case.verb(faulty_store, version))
        assert isinstance(trouble, RecordBusy)
        assert sum(clock.sleeps) <= 2 * TIMEOUT
        if step == 0:  # a change of an earlier step is done by now
            clock.sleeps.clear()
            faulty.calls.clear()
            faulty.faults[:] = [aborted]
            assert bool(case.verb(faulty_store, version)) is case.succeeds
            assert faulty.calls == [case.rpcs[0], *case.rpcs]
            assert len(clock.sleeps) == 1

    def test_no_verb_takes_much_longer_than_twice_its_time_out(
        self,
        faulty: FaultyClient,
        faulty_store: DatastoreStore,
        store: DatastoreStore,
        clock: ManualClock,
    ) -> None:
        """Each RPC takes nearly as long as it may, and another client is always faster."""
        store.create("ann", b"first", 60)

        def slowly() -> None:
            clock.advance(faulty.timeouts[-1] * 0.9)
            store.append("ann", b"\n.")

        began = clock.now()
        faulty.faults[:] = [preceded_by(slowly)] * 1000
        with pytest.raises(StoreUnavailable):
            faulty_store.append("ann", b"\nline")
        assert clock.now() - began <= 2 * TIMEOUT


class TestDeletingDeadRows:
    @pytest.mark.parametrize("code", [UNAVAILABLE, SLOW, grpc.StatusCode.PERMISSION_DENIED])
    def test_a_failed_delete_leaves_the_reader_its_answer(
        self,
        faulty: FaultyClient,
        faulty_store: DatastoreStore,
        store: DatastoreStore,
        code: grpc.StatusCode,
    ) -> None:
        CASES["read, a dead row"].prepare(store)
        faulty.faults[:] = [None, refused(code)]
        assert faulty_store.read("ann") is None
        assert faulty_store.create("ann", b"second", 60) is not None

    def test_a_row_extended_meanwhile_is_kept(
        self, faulty: FaultyClient, faulty_store: DatastoreStore, store: DatastoreStore
    ) -> None:
        version = CASES["read, a dead row"].prepare(store)
        prolong = preceded_by(lambda: store.swap("ann", version, b"prolonged", 60))
        faulty.faults[:] = [None, prolong]
        assert faulty_store.read("ann") is None
        assert faulty.calls == ["lookup", "commit"]
        assert read(store).record == b"prolonged"
        assert faulty_store.create("ann", b"second", 60) is None
