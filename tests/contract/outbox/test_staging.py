"""Staging: in the caller's transaction, at no cost, checked at the call."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.contract.conftest import EACH_MODE
from tests.contract.ndb.servers import Wire
from tests.contract.outbox.conftest import Learner, Mailbox, in_transaction, rows
from userlock.errors import ConfigurationError, JobArgumentsRefused, JobStagedOutside
from userlock.outbox import Outbox, Retry
from userlock.outbox.waking import FAST_SECONDS
from userlock.testing import ManualClock

NAIVE = datetime.datetime.fromtimestamp(1_800_000_000, datetime.UTC).replace(tzinfo=None)


@pytest.fixture
def ran() -> list[Any]:
    return []


@pytest.fixture
def job(outbox: Outbox, ran: list[Any]) -> Any:
    @outbox.job
    def note(user_id: str | int, *facts: Any, **more: Any) -> None:
        ran.append((user_id, *facts, *more.items()))

    return note


@EACH_MODE
class TestTheTransaction:
    def test_it_is_staged_by_the_commit(self, job: Any, mailbox: Mailbox, ran: list[Any]) -> None:
        def change() -> None:
            job.stage("ann", 1, deep={"a": [1.5, None, True]})
            assert mailbox.messages == []

        in_transaction(change)
        assert len(rows()) == 1
        mailbox.deliver_all()
        assert ran == [("ann", 1, ("deep", {"a": [1.5, None, True]}))]
        assert rows() == []

    def test_rolled_back_it_never_was(self, job: Any, mailbox: Mailbox) -> None:
        def change() -> None:
            job.stage("ann")
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            in_transaction(change)
        assert (rows(), mailbox.messages) == ([], [])

    def test_run_again_by_ndb_it_is_staged_once(
        self, job: Any, mailbox: Mailbox, datastore: userlock_emulator.Emulator
    ) -> None:
        with datastore.faults.abort(2, kind="UserLockJob"):
            in_transaction(lambda: job.stage("ann"))
        assert len(rows()) == len(mailbox.messages) == 1

    @pytest.mark.usefixtures("quick_retries")
    def test_a_lost_reply_stages_it_once(
        self, job: Any, mailbox: Mailbox, datastore: userlock_emulator.Emulator
    ) -> None:
        attempts = []

        def change() -> None:
            attempts.append(1)
            job.stage("ann")

        with datastore.faults.drop_reply(kind="UserLockJob"):
            in_transaction(change)
        assert (len(rows()), len(attempts), len(mailbox.messages)) == (1, 1, 1)

    def test_a_joined_transaction_tells_the_engine_at_the_end_of_the_outer_one(
        self, job: Any, mailbox: Mailbox
    ) -> None:
        @ndb.transactional()
        def inner() -> None:
            job.stage("ann")

        def outer() -> None:
            inner()
            assert mailbox.messages == []

        in_transaction(outer)
        assert len(mailbox.messages) == 1

    def test_of_its_own_it_is_staged_although_the_transaction_is_rolled_back(
        self, job: Any, mailbox: Mailbox
    ) -> None:
        def change() -> None:
            job.stage_now("ann")
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            in_transaction(change)
        assert len(rows()) == len(mailbox.messages) == 1

    def test_outside_of_a_transaction_it_is_refused(self, job: Any) -> None:
        for enforcement in "raise", "log", "off":
            userlock.configure(enforcement=enforcement)
            with pytest.raises(JobStagedOutside, match="stage_now"):
                job.stage("ann")
        assert rows() == []

    def test_it_adds_no_round_trip(self, job: Any, ndb_client: ndb.Client) -> None:
        wire = Wire(ndb_client)

        def plain() -> None:
            with userlock.global_lock("ann"):
                learner = Learner.get_by_id("ann") or Learner(id="ann")
                learner.points += 1
                learner.put()

        def staging() -> None:
            plain()
            for number in range(5):
                job.stage("ann", number)

        def count(change: Any) -> list[str]:
            wire.rpcs.clear()
            in_transaction(change)
            return wire.names

        count(plain)
        assert count(staging) == count(plain) == ["begin_transaction", "lookup", "commit"]


class TestTheFastPath:
    def test_it_comes_after_the_lock(
        self, job: Any, mailbox: Mailbox, service: userlock.LockService
    ) -> None:
        with userlock.global_lock("ann"):
            in_transaction(lambda: job.stage("ann"))
            assert mailbox.messages == []
        assert len(mailbox.messages) == 1

    def test_it_comes_after_a_lock_that_is_taken_inside(self, job: Any, mailbox: Mailbox) -> None:
        def change() -> None:
            with userlock.global_lock("ann"):
                job.stage("ann")
            assert mailbox.messages == []

        in_transaction(change)
        assert len(mailbox.messages) == 1

    def test_it_comes_after_the_locks_of_scopes_around(self, job: Any, mailbox: Mailbox) -> None:
        with userlock.scope(), userlock.global_lock("bob"):
            with userlock.scope():
                in_transaction(lambda: job.stage("ann"))
            assert mailbox.messages == []
        assert len(mailbox.messages) == 1

    def test_it_is_bounded(self, job: Any, mailbox: Mailbox) -> None:
        job.stage_now("ann")
        assert mailbox.asked == [pytest.approx(FAST_SECONDS)]

    def test_an_engine_that_is_down_is_left_to_the_relay(
        self, job: Any, mailbox: Mailbox, outbox: Outbox, clock: ManualClock, ran: list[Any]
    ) -> None:
        mailbox.down = True
        for number in range(20):
            job.stage_now("ann", number)
        assert len(mailbox.asked) < 5, "the breaker is open"
        mailbox.down = False
        clock.advance(60)
        assert outbox.relay().woken == 20
        mailbox.deliver_all()
        assert [number for _, number in ran] == list(range(20))

    def test_an_engine_that_raises_does_not_reach_the_request(
        self, job: Any, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def wake(*_: Any) -> Any:
            raise ZeroDivisionError

        monkeypatch.setattr(mailbox, "wake", wake)
        job.stage_now("ann")
        assert len(rows()) == 1

    def test_a_job_for_later_is_left_to_the_relay(
        self, job: Any, mailbox: Mailbox, outbox: Outbox, clock: ManualClock, ran: list[Any]
    ) -> None:
        job.stage_now("ann", delay=datetime.timedelta(hours=1))
        moment = datetime.datetime.fromtimestamp(clock.wall() + 3600, datetime.UTC)
        job.stage_now("bob", due=moment)
        assert mailbox.messages == []
        clock.advance(3590)
        assert outbox.relay().woken == 0
        clock.advance(20)
        assert outbox.relay().woken == 2
        mailbox.deliver_all()
        assert sorted(ran) == [("ann",), ("bob",)]


class TestDedupe:
    def test_a_name_is_staged_once(self, job: Any, mailbox: Mailbox, ran: list[Any]) -> None:
        first = job.stage_now("ann", 1, dedupe="recount")
        second = job.stage_now("ann", 2, dedupe="recount")
        assert (first.duplicate, second.duplicate) == (False, True)
        assert first.key == second.key
        job.stage_now("bob", 3, dedupe="recount")
        mailbox.deliver_all()
        assert ran == [("ann", 1), ("bob", 3)]

    def test_twice_in_one_transaction(self, job: Any) -> None:
        in_transaction(lambda: [job.stage("ann", n, dedupe="recount") for n in range(3)])
        assert len(rows()) == 1

    def test_from_its_begin_on_it_may_be_staged_again(
        self, outbox: Outbox, mailbox: Mailbox
    ) -> None:
        """It may have read what has changed since."""
        seen = []

        @outbox.job
        def recount(user_id: str) -> None:
            seen.append(user_id)
            if len(seen) == 1:
                assert not recount.stage_now("ann", dedupe="recount").duplicate

        recount.stage_now("ann", dedupe="recount")
        mailbox.deliver_all()
        assert seen == ["ann", "ann"]
        assert rows() == []

    @pytest.mark.parametrize("wrong", ["", 1, b"x"])
    def test_a_name_is_a_text(self, job: Any, wrong: Any) -> None:
        with pytest.raises(JobArgumentsRefused, match="dedupe"):
            job.stage_now("ann", dedupe=wrong)


class TestBadInput:
    @pytest.mark.parametrize(
        "value",
        [
            *(b"bytes", object(), {1: "number"}, {"a": {2}}, math.nan, math.inf, [[-math.inf]]),
            *(NAIVE, 1j, Learner, range(3)),
        ],
    )
    def test_what_json_would_change_is_refused(self, job: Any, value: Any) -> None:
        with pytest.raises(JobArgumentsRefused, match=r"argument 2.*To fix it"):
            job.stage_now("ann", value)
        assert rows() == []

    def test_900_kb_go_and_more_do_not(self, job: Any, mailbox: Mailbox, ran: list[Any]) -> None:
        job.stage_now("ann", "x" * 899_900)
        with pytest.raises(JobArgumentsRefused, match="900,000"):
            job.stage_now("ann", "x" * 900_001)
        with pytest.raises(JobArgumentsRefused, match="900,000"):
            job.stage_now("ann", "\u00e4" * 450_001)
        mailbox.deliver_all()
        assert len(ran) == 1

    @pytest.mark.parametrize("owner", ["a\ud800b", "\u202e", "x" * 1500, "\0", 7])
    def test_any_lock_id_may_own_a_job(
        self, job: Any, mailbox: Mailbox, ran: list[Any], owner: Any
    ) -> None:
        job.stage_now(owner, owner)
        mailbox.deliver_all()
        assert ran == [(owner, owner)]
        assert rows() == []

    @pytest.mark.parametrize("owner", ["", None, 1.5, "x" * 1501])
    def test_others_may_not(self, job: Any, owner: Any) -> None:
        with pytest.raises((TypeError, ValueError)):
            job.stage_now(owner)

    @pytest.mark.parametrize(
        "options",
        [
            *({"delay": -1}, {"delay": math.nan}, {"delay": 31 * 86_400}, {"delay": "soon"}),
            {"due": NAIVE},
            {"due": datetime.datetime.now(datetime.UTC), "delay": 1},
            {"tier": "fast"},
        ],
    )
    def test_options_out_of_their_range(self, job: Any, options: Any) -> None:
        with pytest.raises((TypeError, ValueError), match="note"):
            job.stage_now("ann", **options)
        assert rows() == []

    def test_a_call_that_the_function_does_not_take(self, outbox: Outbox) -> None:
        @outbox.job
        def pay(user_id: str, cents: int) -> None: ...

        for call in ({}, {"cent": 1}, {"cents": 1, "more": 2}):
            with pytest.raises(TypeError, match="pay"):
                pay.stage_now("ann", **call)
        assert pay("ann", 5) is None, "a call of the job is a call of the function"

    def test_functions_that_cannot_be_jobs(self, outbox: Outbox) -> None:
        def nobody() -> None: ...

        async def later(user_id: str) -> None: ...

        def taken(user_id: str, delay: int) -> None: ...

        def fine(user_id: str) -> None: ...

        for wrong, text in ((nobody, "owner"), (later, "coroutine"), (taken, "'delay'")):
            with pytest.raises(ConfigurationError, match=text):
                outbox.job(wrong)
        for none in ("fine", None.__class__, 7):
            with pytest.raises(ConfigurationError, match="a job is a function"):
                outbox.job(none)  # type: ignore[arg-type]
        outbox.job(fine)
        with pytest.raises(ConfigurationError, match="two jobs"):
            outbox.job(fine)
        with pytest.raises(ConfigurationError, match="no tier"):
            outbox.job(name="a", tier="fast")(fine)
        with pytest.raises(ConfigurationError, match="no tier"):
            outbox.job(name="b", retry=Retry(tiers={1: "fast"}))(fine)
        with pytest.raises(ConfigurationError, match="on_dead"):
            outbox.job(name="c", on_dead="retry")(fine)

    def test_an_engine_that_is_none(self) -> None:
        for wrong in ("kafka://x", "inline://host", "inline://?threads=-1", "inline://?x=1", ""):
            with pytest.raises(ValueError, match=r"inline"):
                Outbox(wrong)
        with pytest.raises(TypeError):
            Outbox(7)  # type: ignore[arg-type]

    def test_a_message_that_is_no_key(self, outbox: Outbox) -> None:
        other = ndb.Key("Learner", "ann").urlsafe().decode()
        root = ndb.Key("Other", "ann", "UserLockJob", "x").urlsafe().decode()
        child = ndb.Key("UserLockOwner", "=a", "UserLockJob", "x", namespace="n").urlsafe().decode()
        for wrong in ("", "x", "\u00e4", other, other[:-3], root, child):
            with pytest.raises(ValueError, match="key"):
                outbox.run(wrong)

    def test_datastore_being_away_is_an_error_of_the_message(
        self, job: Any, outbox: Outbox, datastore: userlock_emulator.Emulator, ran: list[Any]
    ) -> None:
        """The engine then comes again."""
        staged = job.stage_now("ann")
        with (
            datastore.faults.unavailable(None, rpc="Lookup"),
            pytest.raises(google_errors.GoogleAPIError),
        ):
            outbox.run(staged.key)
        outbox.run(staged.key)
        assert ran == [("ann",)]
