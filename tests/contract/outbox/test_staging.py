"""Staging: in the caller's transaction, at no cost, checked at the call."""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.ndb.servers import Wire
from tests.contract.outbox.conftest import Box, Learner, Mailbox, rows
from userlock.errors import ConfigurationError, JobArgumentsRefused, JobStagedOutside
from userlock.outbox import Outbox, Retry
from userlock.outbox.rows import JobRow
from userlock.outbox.waking import FAST_SECONDS
from userlock_emulator import Emulator

NAIVE = datetime.datetime.fromtimestamp(1_800_000_000, datetime.UTC).replace(tzinfo=None)
NOW = datetime.datetime.now(datetime.UTC)


@EACH_MODE
class TestTheTransaction:
    """Lost replies and aborts of its commit: test_crash_points."""

    def test_it_is_staged_by_the_commit(self, note: Any, mailbox: Mailbox, ran: list[Any]) -> None:
        @ndb.transactional()
        def inner() -> None:
            note.stage("ann", 1, deep={"a": [1.5, None, True]})

        def outer() -> None:
            inner()
            assert mailbox.messages == []

        ndb.transaction(outer)
        assert len(rows()) == len(mailbox.messages) == 1
        mailbox.deliver_all()
        assert ran == [("ann", 1, ("deep", {"a": [1.5, None, True]}))]
        assert rows() == []

    @pytest.mark.parametrize(("stage", "left"), [("stage", 0), ("stage_now", 1)])
    def test_rolled_back(self, note: Any, mailbox: Mailbox, stage: str, left: int) -> None:
        def change() -> None:
            getattr(note, stage)("ann")
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            ndb.transaction(change)
        assert len(rows()) == len(mailbox.messages) == left

    def test_outside_of_a_transaction_it_is_refused(self, note: Any) -> None:
        for enforcement in "raise", "log", "off":
            userlock.configure(enforcement=enforcement)
            with pytest.raises(JobStagedOutside, match="stage_now"):
                note.stage("ann")
        assert rows() == []

    def test_it_adds_no_round_trip(self, note: Any, ndb_client: ndb.Client) -> None:
        wire = Wire(ndb_client)

        def change(jobs: int) -> list[str]:
            wire.rpcs.clear()

            def change() -> None:
                with userlock.global_lock("ann"):
                    Learner.get_or_insert("ann").put()
                for number in range(jobs):
                    note.stage("ann", number)

            ndb.transaction(change)
            return wire.names

        change(0)
        assert change(5) == change(0) == ["lookup", "commit"]


def test_what_no_query_asks_for_has_no_index() -> None:
    """An index entry is one more write."""
    indexed = {name for name, each in JobRow._properties.items() if each._indexed}
    assert indexed == {"due", "standing", "queued", "dead"}


class TestTheFastPath:
    def test_it_comes_after_all_locks_and_is_bounded(self, note: Any, mailbox: Mailbox) -> None:
        """Those around the transaction, inside of it, and of scopes around."""

        def change() -> None:
            with userlock.global_lock("ann"):
                note.stage("ann")

        with userlock.scope(), userlock.global_lock("bob"):
            with userlock.scope(), userlock.global_lock("cem"):
                ndb.transaction(change)
            assert mailbox.messages == []
        assert len(mailbox.messages) == 1
        assert mailbox.asked == [pytest.approx(FAST_SECONDS)]

    def test_an_engine_that_is_down_is_left_to_the_relay(
        self, box: Box, note: Any, ran: list[Any]
    ) -> None:
        box.mailbox.down = True
        for number in range(20):
            note.stage_now("ann", number)
        assert len(box.mailbox.asked) < 5, "the breaker is open"
        assert box.outbox.refused_messages == 20
        box.mailbox.down = False
        box.clock.advance(60)
        assert box.outbox.relay().woken == 20
        box.mailbox.deliver_all()
        assert [number for _, number in ran] == list(range(20))

    def test_an_engine_that_raises_does_not_reach_the_request(
        self, note: Any, mailbox: Mailbox
    ) -> None:
        mailbox.on_wake = lambda _: 1 / 0
        note.stage_now("ann")
        assert len(rows()) == 1

    def test_a_job_for_later_is_left_to_the_relay(
        self, box: Box, note: Any, ran: list[Any]
    ) -> None:
        note.stage_now("ann", delay=datetime.timedelta(hours=1))
        moment = datetime.datetime.fromtimestamp(box.clock.wall() + 3600, datetime.UTC)
        note.stage_now("bob", at=moment)
        assert box.mailbox.messages == []
        box.clock.advance(3590)
        assert box.outbox.relay().woken == 0
        box.clock.advance(20)
        assert box.outbox.relay().woken == 2
        box.mailbox.deliver_all()
        assert sorted(ran) == [("ann",), ("bob",)]


class TestDedupe:
    def test_a_name_is_staged_once(self, note: Any, mailbox: Mailbox, ran: list[Any]) -> None:
        first = note.stage_now("ann", 1, dedupe="recount")
        second = note.stage_now("ann", 2, dedupe="recount")
        assert (first.duplicate, second.duplicate) == (False, True)
        assert first.key == second.key
        note.stage_now("bob", 3, dedupe="recount")
        mailbox.deliver_all()
        assert ran == [("ann", 1), ("bob", 3)]

    def test_twice_in_one_transaction(self, note: Any) -> None:
        ndb.transaction(lambda: [note.stage("ann", n, dedupe="recount") for n in range(3)])
        assert len(rows()) == 1

    def test_from_its_begin_on_it_may_be_staged_again(self, box: Box) -> None:
        """It may have read what has changed since."""
        seen = []

        @box.outbox.job
        def recount(user_id: str) -> None:
            seen.append(user_id)
            if len(seen) == 1:
                assert not recount.stage_now("ann", dedupe="recount").duplicate

        recount.stage_now("ann", dedupe="recount")
        box.mailbox.deliver_all()
        assert seen == ["ann", "ann"]
        assert rows() == []

    def test_a_name_is_a_text(self, note: Any) -> None:
        for wrong in ("", 1, b"x"):
            with pytest.raises(JobArgumentsRefused, match="dedupe"):
                note.stage_now("ann", dedupe=wrong)


class TestBadInput:
    def test_what_json_would_change_is_refused(self, note: Any) -> None:
        values: list[Any] = [
            *(b"bytes", object(), {1: "number"}, {"a": {2}}, math.nan, math.inf, [[-math.inf]]),
            *(NAIVE, 1j, Learner, range(3)),
        ]
        for value in values:
            with pytest.raises(JobArgumentsRefused, match=r"argument 2.*To fix it"):
                note.stage_now("ann", value)
        with pytest.raises(JobArgumentsRefused, match=r"4300 digits.*To fix it"):
            note.stage_now("ann", [10**5_000])
        assert rows() == []

    def test_900_kb_go_and_more_do_not(self, note: Any, mailbox: Mailbox, ran: list[Any]) -> None:
        note.stage_now("ann", "x" * 899_900)
        with pytest.raises(JobArgumentsRefused, match="900,000"):
            note.stage_now("ann", "x" * 900_001)
        with pytest.raises(JobArgumentsRefused, match="900,000"):
            note.stage_now("ann", "\u00e4" * 450_001)
        mailbox.deliver_all()
        assert len(ran) == 1

    @pytest.mark.parametrize("owner", ["a\ud800b", "\u202e", "x" * 1500, "\0", 7])
    def test_any_lock_id_may_own_a_job(
        self, note: Any, mailbox: Mailbox, ran: list[Any], owner: Any
    ) -> None:
        note.stage_now(owner, owner)
        mailbox.deliver_all()
        assert ran == [(owner, owner)]
        assert rows() == []

    def test_owners_and_options_of_no_use(self, note: Any) -> None:
        calls: list[tuple[Any, dict[str, Any]]] = [
            *((owner, {}) for owner in ("", None, 1.5, "x" * 1501)),
            *(("ann", {"delay": delay}) for delay in (-1, math.nan, 31 * 86_400, "soon")),
            ("ann", {"at": NAIVE}),
            ("ann", {"at": NOW, "delay": 1}),
            ("ann", {"tier": "fast"}),
        ]
        for owner, options in calls:
            with pytest.raises((TypeError, ValueError), match=next(iter(options), "lock id")):
                note.stage_now(owner, **options)
        with pytest.raises(ValueError, match="the time until at must be"):
            note.stage_now("ann", at=NOW + datetime.timedelta(days=31_000))
        assert rows() == []

    def test_a_call_that_the_function_does_not_take(self, outbox: Outbox) -> None:
        @outbox.job
        def pay(user_id: str, cents: int) -> None: ...

        for call in ({}, {"cent": 1}, {"cents": 1, "more": 2}):
            with pytest.raises(TypeError, match="pay"):
                pay.stage_now("ann", **call)

        @outbox.job
        def greet(user_id: str = "ann", text: str = "") -> None: ...

        for given in ({}, {"text": "bob"}):
            with pytest.raises(TypeError, match=r"job .*greet: its owner, user_id, is missing"):
                greet.stage_now(**given)
        assert pay("ann", 5) is None, "a call of the job is a call of the function"

    def test_functions_that_cannot_be_jobs(self, outbox: Outbox) -> None:
        def nobody() -> None: ...

        async def later(user_id: str) -> None: ...

        def taken(user_id: str, delay: int) -> None: ...

        def fine(user_id: str) -> None: ...

        for wrong, text in ((nobody, "owner"), (later, "coroutine"), (taken, "'delay'")):
            with pytest.raises(ConfigurationError, match=text):
                outbox.job(wrong)
        for none in ("fine", None.__class__, 7, functools.partial(fine)):
            with pytest.raises(ConfigurationError, match="a job is a function"):
                outbox.job(none)  # type: ignore[arg-type]
        outbox.job(fine)
        for options, text in (
            ({}, "two jobs"),
            ({"name": "a", "tier": "fast"}, "no tier"),
            ({"name": "b", "retry": Retry(tiers={1: "fast"})}, "no tier"),
            ({"name": "c", "on_dead": "retry"}, "on_dead"),
            ({"name": "d", "on_dead": "block", "ordered": False}, "on_dead='block' is for ordered"),
            ({"name": "e", "on_dead": "block", "owner": None}, "on_dead='block' is for ordered"),
            ({"name": "f", "time_limit": 901}, "above the outbox.s claim_seconds"),
            # `purge("export")` would delete letters of "export monthly".
            ({"name": "export monthly"}, "none of them a blank"),
            ({"name": "x" * 201}, "1 to 200 characters"),
        ):
            with pytest.raises(ConfigurationError, match=text):
                outbox.job(**options)(fine)
        take: Any
        for take in (outbox.within, outbox.each_minute):
            for no_function in (contextlib.nullcontext(), later, None):
                with pytest.raises(TypeError, match="takes a plain function"):
                    take(no_function)

    @pytest.mark.usefixtures("quick_retries")
    def test_datastore_being_away_is_an_error_of_the_message(
        self, note: Any, outbox: Outbox, datastore: Emulator, ran: list[Any]
    ) -> None:
        """The engine then comes again."""
        staged = note.stage_now("ann")
        with (
            datastore.faults.unavailable(None),
            pytest.raises(google_errors.GoogleAPIError),
        ):
            outbox.run(staged.key)
        outbox.run(staged.key)
        assert ran == [("ann",)]
