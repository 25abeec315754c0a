"""Retries of a verb, and their duration, when its RPCs fail or others are faster."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from tests.contract.stores.datastore.cases import CASES, STEPS, Case, fails
from tests.contract.stores.datastore.conftest import Rig, read
from tests.contract.stores.datastore.faulty import RpcError, lost, preceded_by, refused
from tests.leases import existing
from userlock.lock.store import NoConnection, RecordBusy, StoreUnavailable
from userlock.stores.datastore import TIMEOUT
from userlock.stores.pool import Turns
from userlock.stores.stream import Place

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
SLOW = grpc.StatusCode.DEADLINE_EXCEEDED


class TestAppend:
    """`append` keeps its promise when its RPCs are sent again."""

    def test_a_lost_reply(self, rig: Rig) -> None:
        rig.store.create("ann", b"first", 60)
        rig.faulty.faults[:] = [None, lost(UNAVAILABLE)]
        stored = rig.faulty_store.append("ann", b"\nline")
        assert rig.faulty.calls == ["lookup", "commit", "lookup"]
        assert stored is not None
        assert stored[:3] == read(rig.store)[:3]
        assert stored.record == b"first\nline"
        assert rig.store.remove("ann", stored.version)

    def test_a_lost_reply_and_another_line(self, rig: Rig) -> None:
        """The outcome is unknown, and the line may be there twice, as the protocol has it."""
        rig.store.create("ann", b"first", 60)
        rig.faulty.faults[:] = [
            None,
            lost(UNAVAILABLE),
            preceded_by(lambda: rig.store.append("ann", b"\nanother")),
        ]
        rig.faulty_store.append("ann", b"\nline")
        assert read(rig.store).record == b"first\nline\nanother\nline"

    @pytest.mark.parametrize("next_one", [None, b"next"])
    def test_a_lost_reply_and_another_life(self, rig: Rig, next_one: bytes | None) -> None:
        """The outcome is unknown; and the next holder's record is left alone."""
        rig.store.create("ann", b"first", 60)

        def over_and_done_with() -> None:
            assert rig.store.remove("ann", read(rig.store).version)
            if next_one is not None:
                assert rig.store.create("ann", next_one, 60) is not None

        rig.faulty.faults[:] = [None, lost(UNAVAILABLE), preceded_by(over_and_done_with)]
        with pytest.raises(StoreUnavailable) as caught:
            rig.faulty_store.append("ann", b"\nline")
        assert caught.value.sent
        left = rig.store.read("ann")
        assert (None if left is None else left.record) == next_one

    def test_a_lost_reply_and_no_turn_to_look(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The line may be there, and the caller has to know that."""
        rig.store.create("ann", b"first", 60)
        rig.faulty.faults[:] = [None, lost(UNAVAILABLE)]
        take = rig.faulty_store._turns.take

        async def third() -> Place:
            if len(rig.faulty.calls) == 2:
                raise NoConnection("all are in use")
            return await take()

        monkeypatch.setattr(rig.faulty_store._turns, "take", third)
        with pytest.raises(NoConnection) as caught:
            rig.faulty_store.append("ann", b"\nline")
        assert caught.value.sent
        assert read(rig.store).record == b"first\nline"

    def test_an_update_that_was_not_carried_out_is_sent_again(self, rig: Rig) -> None:
        rig.store.create("ann", b"first", 60)
        broken = refused(UNAVAILABLE, "Socket closed")
        rig.faulty.faults[:] = [broken, None, broken]
        rig.faulty_store.append("ann", b"\nline")
        assert rig.faulty.calls == ["lookup", "lookup", "commit", "lookup", "commit"]
        assert read(rig.store).record == b"first\nline"

    def test_an_abandoned_update_is_not_carried_out_later(self, rig: Rig) -> None:
        rig.store.create("ann", b"first", 60)
        fails(
            rig.faulty,
            1,
            rig.faulty.late_fault(),
            lambda: rig.faulty_store.append("ann", b"\nline"),
        )
        rig.faulty_store.append("ann", b"\nline")
        rig.faulty.deliver()
        assert read(rig.store).record == b"first\nline"

    def test_others_are_faster(self, rig: Rig) -> None:
        rig.store.create("ann", b"first", 60)
        faster = preceded_by(lambda: rig.store.append("ann", b"\nfaster"))
        rig.faulty.faults[:] = [None, faster, None, faster]
        assert existing(rig.faulty_store.append("ann", b"\nline"))[:3] == read(rig.store)[:3]
        assert rig.faulty.calls == ["lookup", "commit"] * 3
        assert read(rig.store).record == b"first\nfaster\nfaster\nline"
        assert len(rig.clock.sleeps) == 2

    def test_without_the_version_a_line_would_be_lost(self, rig: Rig) -> None:
        """The control of the test before."""
        rig.store.create("ann", b"first", 60)

        def faster() -> None:
            rig.store.append("ann", b"\nfaster")
            type(rig.faulty.requests[-1]).pb(rig.faulty.requests[-1]).mutations[0].ClearField(
                "base_version"
            )

        rig.faulty.faults[:] = [None, preceded_by(faster)]
        rig.faulty_store.append("ann", b"\nline")
        assert read(rig.store).record == b"first\nline"

    def test_others_are_always_faster(self, rig: Rig) -> None:
        rig.store.create("ann", b"first", 60)
        rig.faulty.faults[:] = [None, preceded_by(lambda: rig.store.append("ann", b"\n."))] * 1000
        with pytest.raises(StoreUnavailable, match="others were faster") as caught:
            rig.faulty_store.append("ann", b"\nline")
        assert isinstance(caught.value, RecordBusy)
        assert sum(rig.clock.sleeps) <= 2 * TIMEOUT
        assert b"line" not in read(rig.store).record


class TestContention:
    """ABORTED: nothing was done, and the commit is retried while there is time."""

    @pytest.mark.parametrize(("case", "step"), STEPS)
    def test_once_and_without_end(self, rig: Rig, case: Case, step: int) -> None:
        version = case.prepare(rig.store)
        aborted = refused(grpc.StatusCode.ABORTED, "contention")
        trouble = fails(rig.faulty, step, aborted, lambda: case.verb(rig.faulty_store, version))
        assert isinstance(trouble, RecordBusy)
        assert sum(rig.clock.sleeps) <= 2 * TIMEOUT
        if step == 0:  # a change of an earlier step is done by now
            rig.clock.sleeps.clear()
            rig.faulty.calls.clear()
            rig.faulty.faults[:] = [aborted]
            assert bool(case.verb(rig.faulty_store, version)) is case.succeeds
            assert rig.faulty.calls == [case.rpcs[0], *case.rpcs]
            assert len(rig.clock.sleeps) == 1

    def test_no_verb_takes_much_longer_than_twice_its_time_out(self, rig: Rig) -> None:
        """Each RPC takes nearly as long as it may, and another client is always faster."""
        rig.store.create("ann", b"first", 60)

        def slowly() -> None:
            rig.clock.advance(rig.faulty.timeouts[-1] * 0.9)
            rig.store.append("ann", b"\n.")

        began = rig.clock.now()
        rig.faulty.faults[:] = [preceded_by(slowly)] * 1000
        with pytest.raises(StoreUnavailable):
            rig.faulty_store.append("ann", b"\nline")
        assert rig.clock.now() - began <= 2 * TIMEOUT


class TestDeletingDeadRows:
    @pytest.mark.parametrize("code", [UNAVAILABLE, SLOW, grpc.StatusCode.PERMISSION_DENIED])
    def test_a_failed_delete_leaves_the_reader_its_answer(
        self, rig: Rig, code: grpc.StatusCode
    ) -> None:
        CASES["read, a dead row"].prepare(rig.store)
        rig.faulty.faults[:] = [None, refused(code)]
        assert rig.faulty_store.read("ann") is None
        assert rig.faulty_store.create("ann", b"second", 60) is not None

    def test_a_row_extended_meanwhile_is_kept(self, rig: Rig) -> None:
        version = CASES["read, a dead row"].prepare(rig.store)
        prolong = preceded_by(lambda: rig.store.swap("ann", version, b"prolonged", 60))
        rig.faulty.faults[:] = [None, prolong]
        assert rig.faulty_store.read("ann") is None
        assert rig.faulty.calls == ["lookup", "commit"]
        assert read(rig.store).record == b"prolonged"
        assert rig.faulty_store.create("ann", b"second", 60) is None


@pytest.mark.parametrize("bounded", [True, False])
def test_a_crowd_does_not_wait_for_a_hanging_server_one_by_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    """Those that wait for their turn fail with the first that finds out."""
    if not bounded:
        monkeypatch.setattr(Turns, "refuse", lambda *_: None)
    turns = rig.faulty_store._turns = Turns[Place](1)

    def slow(_: Callable[[], Any]) -> Any:
        while len(turns._waiters) < 3 and len(rig.faulty.calls) == 1:
            os.sched_yield()
        raise RpcError(SLOW, "")

    def read(_: int) -> None:
        with pytest.raises(StoreUnavailable, match="DEADLINE"):
            rig.faulty_store.read("ann")

    rig.faulty.faults[:] = [slow] * 4
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read, range(4)))
    assert len(rig.faulty.calls) == (1 if bounded else 4)


@pytest.mark.parametrize(("most", "at_once"), [(4, 4), (16, 12)], ids=["bounded", "not bounded"])
def test_a_crowd_takes_turns(rig: Rig, most: int, at_once: int) -> None:
    """With too many RPCs at once a server is late, which looks like an outage."""
    rig.faulty_store._turns = Turns[Place](most)
    under_way: list[int] = []
    full, seen = threading.Event(), []

    def noted(carry_out: Callable[[], Any]) -> Any:
        under_way.append(1)
        seen.append(len(under_way))
        if len(under_way) == at_once:
            full.set()
        assert full.wait(30)
        try:
            return carry_out()
        finally:
            under_way.pop()

    rig.faulty.faults[:] = [noted] * 12
    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(lambda _: rig.faulty_store.read("ann"), range(12)))
    assert found == [None] * 12
    assert max(seen) == at_once
