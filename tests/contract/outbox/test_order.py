"""The order of an owner's jobs: that of their commits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.outbox.conftest import (
    Mailbox,
    in_transaction,
)
from userlock.outbox import Outbox
from userlock.testing import ManualClock


class TestOrder:
    @pytest.fixture
    def ran(self) -> list[Any]:
        return []

    @pytest.fixture
    def note(self, outbox: Outbox, ran: list[Any]) -> Any:
        @outbox.job
        def note(user_id: str, number: int) -> None:
            ran.append(number)

        return note

    @pytest.fixture
    def poison(self, outbox: Outbox) -> Any:
        @outbox.job
        def poison(user_id: str) -> None:
            raise ValueError

        return poison

    @pytest.mark.parametrize("first", range(5))
    def test_any_message_runs_the_earlier_ones_first(
        self, outbox: Outbox, mailbox: Mailbox, note: Any, ran: list[Any], first: int
    ) -> None:
        for number in range(5):
            note.stage_now("ann", number)
        outbox.run(mailbox.messages[first].key)
        assert ran == list(range(5)), "and those after it, while it has time"
        mailbox.deliver_all()
        assert ran == list(range(5))

    def test_a_message_does_not_run_for_long(
        self, outbox: Outbox, mailbox: Mailbox, clock: ManualClock, ran: list[Any]
    ) -> None:
        """An engine's own deadline would end it."""

        @outbox.job
        def slow(user_id: str, number: int) -> None:
            clock.advance(6)
            ran.append(number)

        for number in range(5):
            slow.stage_now("ann", number)
        outbox.run(mailbox.messages[0].key)
        assert ran == [0, 1, 2]

    def test_within_one_transaction(self, mailbox: Mailbox, note: Any, ran: list[Any]) -> None:
        in_transaction(lambda: [note.stage("ann", number) for number in range(12)])
        mailbox.messages.reverse()
        mailbox.deliver_all()
        assert ran == list(range(12))

    def test_wall_clocks_do_not_count(
        self,
        mailbox: Mailbox,
        note: Any,
        ran: list[Any],
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The processes that stage them disagree about the time by minutes."""
        now = clock.wall()
        monkeypatch.setattr(clock, "wall", lambda: now)
        for number in range(8):
            now -= 100
            note.stage_now("ann", number)
        mailbox.messages.reverse()
        now += 10_000
        mailbox.deliver_all()
        assert ran == list(range(8))

    def test_a_failing_job_holds_up_its_owner_only(
        self,
        outbox: Outbox,
        mailbox: Mailbox,
        note: Any,
        poison: Any,
        ran: list[Any],
        clock: ManualClock,
    ) -> None:
        poison.stage_now("ann")
        note.stage_now("ann", 1)
        note.stage_now("bob", 2)
        mailbox.deliver_all()
        assert ran == [2]
        for _ in range(4):
            clock.advance(100)
            outbox.relay()
            mailbox.deliver_all()
        assert ran == [2, 1], "dead, it is passed"

    def test_a_dead_job_may_block_until_it_is_redriven_or_purged(
        self, outbox: Outbox, mailbox: Mailbox, note: Any, ran: list[Any], clock: ManualClock
    ) -> None:
        well: list[int] = []

        @outbox.job(on_dead="block", never_retry=[ValueError])
        def poison(user_id: str) -> None:
            if not well:
                raise ValueError

        for end in "redrive", "purge":
            poison.stage_now("ann")
            note.stage_now("ann", end)
            mailbox.deliver_all()
            for _ in range(3):
                clock.advance(2000)
                outbox.relay()
                mailbox.deliver_all()
            assert end not in ran
            if end == "redrive":
                well.append(1)
                assert [done for _, done in outbox.dead.redrive_all("")] == [True]
                well_again = mailbox.deliver_all()
                assert well_again
                well.clear()
            else:
                assert len(list(outbox.dead.purge())) == 1
            clock.advance(2000)
            outbox.relay()
            mailbox.deliver_all()
            assert ran[-1] == end

    def test_a_job_for_later_holds_nobody_up(
        self, outbox: Outbox, mailbox: Mailbox, note: Any, ran: list[Any], clock: ManualClock
    ) -> None:
        note.stage_now("ann", 1, delay=3600)
        note.stage_now("ann", 2)
        mailbox.deliver_all()
        assert ran == [2]
        clock.advance(3601)
        outbox.relay()
        mailbox.deliver_all()
        assert ran == [2, 1]

    def test_without_order_a_job_neither_waits_nor_holds_up(
        self, outbox: Outbox, mailbox: Mailbox, note: Any, poison: Any, ran: list[Any]
    ) -> None:
        @outbox.job(ordered=False)
        def free(user_id: str, number: int) -> None:
            ran.append(number)
            if number == 0:
                raise ValueError

        poison.stage_now("ann")
        free.stage_now("ann", 1)
        free.stage_now("bob", 0)
        note.stage_now("bob", 2)
        mailbox.deliver_all()
        assert ran == [1, 0, 2]

    def test_more_jobs_than_are_read_at_once(
        self, mailbox: Mailbox, note: Any, ran: list[Any]
    ) -> None:
        for number in range(50):
            note.stage_now("ann", number)
        mailbox.messages[:] = mailbox.messages[-1:]
        mailbox.deliver_all()
        assert ran == list(range(50))
