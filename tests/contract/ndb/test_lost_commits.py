"""The reply to a transaction's commit is lost: it is applied once, or an error says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.ndb.actions import Overtake, change
from tests.contract.ndb.gates import stored
from tests.contract.ndb.models import Learner, Marked, Plain, VideoLog
from tests.contract.ndb.servers import Wire
from userlock_emulator import Emulator
from userlock_emulator.datastore.errors import Code
from userlock_emulator.datastore.faults import Fault, Rule

pytestmark = [pytest.mark.usefixtures("context", "quick_retries"), EACH_MODE]


@pytest.fixture(autouse=True)
def _ann(context: Any) -> None:
    with userlock.global_lock("ann"):
        Learner(id="ann").put()
        Marked(id="ann").put()
    with userlock.global_lock("bob"):
        Learner(id="bob").put()
    context.clear_cache()


class Work:
    """A transaction: its steps, and the number of its attempts."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        self.runs = 0
        self._steps = steps

    def __call__(self) -> None:
        self.runs += 1
        for step in self._steps:
            step()

    def under_lock(self, **options: Any) -> None:
        with userlock.global_locks(["ann", "ann-2"]):
            ndb.transaction(self, **options)


def add_to_marked() -> None:
    learner = Marked.get_by_id("ann")
    learner.points += 5
    learner.put()


def add_to_unmarked() -> None:
    learner = Learner.get_by_id("ann")
    learner.points += 5
    learner.put()


def log_it() -> None:
    VideoLog(learner_id="ann").put()


def delete_it() -> None:
    Learner.get_by_id("ann").key.delete()


def create_it() -> None:
    Learner(id="ann-2").put()


def drop_reply(datastore: Emulator) -> Fault:
    return datastore.faults.drop_reply()


def out_of_time(datastore: Emulator) -> Fault:
    return datastore.faults.deadline_exceeded(rpc="Commit", applied=True)


def internal(datastore: Emulator) -> Fault:
    rule = Rule(name="internal", code=Code.INTERNAL, rpc="Commit", applied=True)
    return datastore.faults.plant(rule)


LOSSES = [drop_reply, out_of_time, internal]


class TestApplied:
    @pytest.mark.parametrize("lose", LOSSES)
    def test_is_recognised_by_a_write_id(
        self, datastore: Emulator, lose: Callable[[Emulator], Fault]
    ) -> None:
        work = Work(add_to_unmarked, add_to_marked)
        lose(datastore)
        work.under_lock()
        assert work.runs == 1
        assert (stored(Marked), stored(Learner)) == (5, 5)

    def test_is_recognised_by_an_id_that_was_allocated_for_it(self, datastore: Emulator) -> None:
        work = Work(add_to_unmarked, log_it)
        drop_reply(datastore)
        work.under_lock()
        assert work.runs == 1
        assert (VideoLog.query().count(), stored(Learner)) == (1, 5)

    def test_is_done_where_all_its_entities_are_gone(self, datastore: Emulator) -> None:
        work = Work(delete_it)
        drop_reply(datastore)
        work.under_lock()
        assert work.runs == 1
        assert stored(Learner) is None

    @pytest.mark.parametrize("step", [add_to_unmarked, create_it])
    def test_is_in_doubt_otherwise_and_not_run_again(
        self, datastore: Emulator, step: Callable[[], None]
    ) -> None:
        work = Work(step)
        drop_reply(datastore)
        with pytest.raises(userlock.CommitInDoubt) as caught:
            work.under_lock()
        assert work.runs == 1
        assert "whether it was applied is not known" in str(caught.value)
        assert caught.value.key.kind() == "TestedLearner"
        assert "test_lost_commits.py" in str(caught.value.put_at)


def test_with_plain_models_ndb_applies_it_twice(datastore: Emulator) -> None:
    """The negative control: the same with models that are not watched."""

    def add() -> None:
        plain = Plain.get_by_id("ann") or Plain(id="ann")
        plain.number += 5
        plain.put()

    work = Work(add)
    drop_reply(datastore)
    work.under_lock()
    assert work.runs == 2
    assert Plain.get_by_id("ann", use_cache=False).number == 10


class TestNotApplied:
    @pytest.mark.parametrize("step", [add_to_unmarked, add_to_marked, delete_it, create_it])
    def test_arrives_when_it_is_sent_again(
        self, datastore: Emulator, step: Callable[[], None], wire: Wire
    ) -> None:
        """The request was lost, not the reply. ndb alone would run the function again."""
        work = Work(step)
        datastore.faults.unavailable(2, rpc="Commit")
        work.under_lock()
        assert work.runs == 1
        assert wire.begun == 1

    def test_is_run_again_after_contention(self, datastore: Emulator) -> None:
        """It is certain that nothing was applied."""
        work = Work(add_to_unmarked, add_to_marked)
        datastore.faults.abort(2)
        work.under_lock()
        assert work.runs == 3
        assert (stored(Marked), stored(Learner)) == (5, 5)

    @pytest.mark.parametrize("step", [add_to_unmarked, add_to_marked, delete_it])
    def test_is_run_again_when_its_entities_are_unchanged(
        self, datastore: Emulator, step: Callable[[], None]
    ) -> None:
        """The request was lost, and then the transaction was given up."""
        work = Work(step)
        datastore.faults.unavailable(rpc="Commit")
        datastore.faults.abort()
        work.under_lock()
        assert work.runs == 2
        assert stored(Marked) == (5 if step is add_to_marked else 0)
        assert stored(Learner) == {add_to_unmarked: 5, delete_it: None}.get(step, 0)

    def test_is_in_doubt_where_nothing_would_have_changed(self, datastore: Emulator) -> None:
        """An unchanged entity looks the same, whether its put was applied or not."""

        def put_as_it_is() -> None:
            Learner.get_by_id("ann").put()

        work = Work(put_as_it_is)
        datastore.faults.unavailable(rpc="Commit")
        datastore.faults.abort()
        with pytest.raises(userlock.CommitInDoubt):
            work.under_lock()
        assert work.runs == 1


class TestInDoubt:
    def test_the_service_stays_away(self, datastore: Emulator) -> None:
        """A request may still be on its way."""
        work = Work(add_to_marked)
        datastore.faults.unavailable(None, rpc="Commit")
        with pytest.raises(userlock.CommitInDoubt) as caught:
            work.under_lock()
        assert work.runs == 1
        assert isinstance(caught.value.__cause__, google_errors.ServiceUnavailable)

    def test_the_look_up_fails(self, datastore: Emulator) -> None:
        work = Work(add_to_marked)
        datastore.faults.drop_reply()
        datastore.faults.unavailable(None, rpc="Lookup", skip=1)
        with pytest.raises(userlock.CommitInDoubt):
            work.under_lock()
        assert work.runs == 1

    def test_somebody_else_has_written_since(self, datastore: Emulator, overtake: Overtake) -> None:
        """The write id is gone with the overwritten entity."""

        class Rival(Wire):
            """Writes between the lost reply and the second attempt."""

            commits = 0

            def sent(self, name: str, request: Any) -> Any:
                self.commits += name == "commit"
                if name == "commit" and self.commits == 2:
                    overtake(lambda: change(ndb.Key(Marked, "ann"), 100))
                return super().sent(name, request)

        work = Work(add_to_marked)
        datastore.faults.drop_reply()
        Rival(ndb.context.get_context().client)
        with pytest.raises(userlock.CommitInDoubt):
            work.under_lock()
        assert work.runs == 1
        assert stored(Marked) == 105


class TestAfterwards:
    def test_an_object_that_has_landed_can_be_put_again(self, datastore: Emulator) -> None:
        learner: list[Any] = []

        def add() -> None:
            found = Marked.get_by_id("ann")
            found.points += 5
            found.put()
            learner[:] = [found]

        with userlock.global_lock("ann"):
            datastore.faults.drop_reply()
            ndb.transaction(add)
            learner[0].points += 5
            learner[0].put()
        assert stored(Marked) == 10

    def test_in_doubt_the_objects_leave_the_context_cache(self, datastore: Emulator) -> None:
        with userlock.global_lock("ann"):
            datastore.faults.drop_reply()
            with pytest.raises(userlock.CommitInDoubt):
                ndb.transaction(add_to_unmarked)
            assert Learner.get_by_id("ann").points == 5

    def test_the_lock_is_held_until_it_is_known(
        self, datastore: Emulator, service: userlock.LockService
    ) -> None:
        """A lock that was taken inside."""
        held: list[bool] = []

        @ndb.transactional()
        def add() -> None:
            with userlock.global_lock("ann"):
                add_to_marked()

        class Observer(Wire):
            def sent(self, name: str, request: Any) -> Any:
                held.append(service.holder("ann") is not None)
                return super().sent(name, request)

        datastore.faults.drop_reply()
        Observer(ndb.context.get_context().client)
        add()
        # Look, commit, commit again, roll back or look.
        assert len(held) >= 4
        assert all(held)
        assert service.holder("ann") is None
        assert stored(Marked) == 5
