"""The reply to a commit is lost, ndb sends it again, and it meets itself."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.contract.constraints.models import campaign
from tests.contract.ndb.actions import Elsewhere, Overtake, change
from tests.contract.ndb.models import Learner, Marked
from tests.contract.ndb.servers import Wire
from userlock.stores import MemoryStore
from userlock.testing import allow_unlocked

pytestmark = pytest.mark.usefixtures("context", "quick_retries")


def new(model: Any, name: str = "ann", points: int = 0) -> Any:
    with userlock.global_lock(name):
        model(id=name, points=points).put()
    ndb.context.get_context().clear_cache()
    return ndb.Key(model, name)


def stored(key: Any) -> int | None:
    found = key.get(use_cache=False)
    return None if found is None else found.points


def by_content(entity: Any) -> tuple[str, int]:
    """Takes the place of a `WriteIdProperty`: writes are recognised by what they say."""
    return "points", entity.points


@pytest.fixture
def key() -> Any:
    """Return the key of an entity whose writes have write ids."""
    return new(Marked)


def test_a_mixin_may_give_the_write_id() -> None:
    class Recognised:
        write_id = userlock.WriteIdProperty()

    class First(Recognised, userlock.UserModel):
        _lock_id_from_key = userlock.key_id

    class Last(userlock.UserModel, Recognised):
        _lock_id_from_key = userlock.key_id

    for model in First, Last:
        with userlock.global_lock("ann"):
            entity = model(id="ann")
            entity.put()
        assert entity.write_id is not None


class TestPuts:
    def test_a_put_that_met_itself_has_landed(
        self, key: Any, datastore: userlock_emulator.Emulator
    ) -> None:
        with userlock.global_lock("ann"):
            learner = key.get()
            for _ in range(3):
                datastore.faults.drop_reply(kind="TestedMarked")
                learner.points += 5
                learner.put()
        assert stored(key) == 15

    def test_without_a_write_id_it_is_in_doubt(self, datastore: userlock_emulator.Emulator) -> None:
        """The negative control, and the error's message."""
        key = new(Learner)
        with userlock.global_lock("ann"):
            learner = key.get()
            datastore.faults.drop_reply()
            learner.points += 5
            with pytest.raises(userlock.StaleWriteError) as caught:
                learner.put()
        assert caught.value.may_have_landed
        assert "the reply to an earlier attempt was lost" in str(caught.value)
        assert stored(key) == 5, "it has landed"

    @pytest.mark.parametrize(
        ("fault", "in_doubt"),
        [("unavailable", True), ("abort", False), ("unavailable", None)],
        ids=["lost on its way", "aborted: nothing was applied", "the control: by the content"],
    )
    def test_another_requests_write_is_not_taken_for_ours(
        self,
        key: Any,
        datastore: userlock_emulator.Emulator,
        overtake: Overtake,
        monkeypatch: pytest.MonkeyPatch,
        fault: str,
        in_doubt: bool | None,
    ) -> None:
        """It writes the same. By the content, five points of ten would be lost without an error."""
        if in_doubt is None:
            monkeypatch.setattr(Marked, "_userlock_new_write_id", staticmethod(by_content))
        with userlock.global_lock("ann"):
            learner = key.get()
            overtake(lambda: change(key, 5))
            getattr(datastore.faults, fault)(rpc="Commit")
            learner.points += 5
            if in_doubt is None:
                learner.put()
            else:
                with pytest.raises(userlock.StaleWriteError) as caught:
                    learner.put()
                assert caught.value.may_have_landed is in_doubt
                assert ("look at what is stored" in str(caught.value)) is in_doubt
        assert stored(key) == 5

    def test_when_the_look_up_fails_it_is_in_doubt(
        self, key: Any, datastore: userlock_emulator.Emulator
    ) -> None:
        with userlock.global_lock("ann"):
            learner = key.get()
            datastore.faults.drop_reply()
            datastore.faults.unavailable(3, rpc="Lookup")
            with pytest.raises(userlock.StaleWriteError) as caught:
                learner.put()
        assert caught.value.may_have_landed

    def test_a_batch_of_which_one_is_stale(
        self, datastore: userlock_emulator.Emulator, store: MemoryStore, elsewhere: Elsewhere
    ) -> None:
        names = [f"learner-{number}" for number in range(20)]
        with allow_unlocked("arranging data"):
            ndb.put_multi([Marked(id=name) for name in names])
            keys = [ndb.Key(Marked, name) for name in names]
            learners = ndb.get_multi(keys, use_cache=False)
            elsewhere(lambda: change(keys[7], 1000))
            datastore.faults.drop_reply()
            for learner in learners:
                learner.points = 1
            futures = ndb.put_multi_async(learners)
            errors = [future.exception() for future in futures if future.wait() is None]
        assert [number for number, error in enumerate(errors) if error] == [7]
        assert [stored(each) for each in keys] == [1] * 7 + [1000] + [1] * 12

    def test_a_look_up_of_claims_that_fails_is_the_error_of_its_put_alone(
        self, datastore: userlock_emulator.Emulator, elsewhere: Elsewhere
    ) -> None:
        with allow_unlocked("arranging data"):
            keys = ndb.put_multi([Marked(id="ann"), Marked(id="ben")])
            learners = ndb.get_multi(keys, use_cache=False)
            elsewhere(lambda: change(keys[1], 1000))
            for learner in learners:
                learner.points = 1
            datastore.faults.unavailable(None, rpc="Lookup")
            futures = ndb.put_multi_async([*learners, campaign("Summer")])
            errors = [future.exception() for future in futures if future.wait() is None]
        assert errors[0] is None
        assert isinstance(errors[1], userlock.StaleWriteError)
        assert isinstance(errors[2], google_errors.RetryError)

    @pytest.mark.parametrize("fault", ["unavailable", "deadline_exceeded"])
    def test_the_service_stays_away(
        self, key: Any, datastore: userlock_emulator.Emulator, fault: str
    ) -> None:
        """As in ndb, the last error is raised: the outcome is not known, until it is looked up."""
        with userlock.global_lock("ann"):
            learner = key.get()
            getattr(datastore.faults, fault)(None, rpc="Commit")
            learner.points += 5
            with pytest.raises((google_errors.RetryError, google_errors.DeadlineExceeded)):
                learner.put()
            again = key.get()
            assert again.points == stored(key) == 0
            again.points += 5
            with pytest.raises(userlock.CreatedWithoutLock):
                ndb.put_multi([again, Marked(id="bob")])
            assert key.get() is key.get(), "it is cached again"
            assert key.get().points == 0
        datastore.faults.clear()


class TestCreations:
    @pytest.mark.parametrize("count", [1, 30])
    def test_creations_that_met_themselves_have_landed(
        self, datastore: userlock_emulator.Emulator, count: int
    ) -> None:
        datastore.faults.drop_reply()
        learners = [Marked(id=f"learner-{number}") for number in range(count)]
        with allow_unlocked("arranging data"):
            ndb.put_multi(learners)
            for learner in learners:
                learner.points = 1
            ndb.put_multi(learners)
        assert [stored(learner.key) for learner in learners] == [1] * count

    def test_without_a_write_id_it_is_in_doubt(self, datastore: userlock_emulator.Emulator) -> None:
        datastore.faults.drop_reply()
        with userlock.global_lock("ann"), pytest.raises(userlock.EntityExistsError) as caught:
            Learner(id="ann").put()
        assert caught.value.may_have_landed

    def test_of_a_batch_the_existing_one_gets_the_error(
        self, datastore: userlock_emulator.Emulator
    ) -> None:
        taken = new(Marked, "learner-3", 7)
        datastore.faults.drop_reply()
        datastore.faults.drop_reply(2, skip=2)
        with allow_unlocked("arranging data"):
            learners = [Marked(id=f"learner-{number}") for number in range(6)]
            futures = ndb.put_multi_async(learners)
            errors = [future.exception() for future in futures if future.wait() is None]
        assert [number for number, error in enumerate(errors) if error] == [3]
        assert stored(taken) == 7


class PartialServer(Wire):
    """Without a transaction, "mutations may not apply as all or none"."""

    def sent(self, name: str, request: Any) -> Any:
        request = super().sent(name, request)
        if (
            name == "commit"
            and request.mode.name == "NON_TRANSACTIONAL"
            and len(request.mutations) > 1
        ):
            self._apply_some(request)
        return request

    def _apply_some(self, request: Any) -> None:
        for mutation in list(request.mutations)[:2]:
            if "insert" in mutation:
                alone = type(request)(request)
                alone.mutations = [mutation]
                self._stub.commit(alone)


class TestPartialCommits:
    @pytest.fixture(autouse=True)
    def _partial(self, ndb_client: ndb.Client, context: Any) -> None:
        new(Learner, "learner-2", 7)
        PartialServer(ndb_client)

    def create_three(self) -> list[Any]:
        with allow_unlocked("arranging data"):
            futures = ndb.put_multi_async([Learner(id=f"learner-{n}") for n in range(3)])
            return [type(future.exception()) for future in futures if future.wait() is None]

    def test_a_creation_that_has_landed_is_not_reported_as_existing(self) -> None:
        assert self.create_three() == [type(None), type(None), userlock.EntityExistsError]

    def test_in_an_ordinary_commit_it_would_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The negative control."""
        sent = Wire.sent

        def sent_without_transaction(wire: Wire, name: str, request: Any) -> Any:
            if name == "commit":
                request = type(request)(request, mode="NON_TRANSACTIONAL")
                request.single_use_transaction = None
            return sent(wire, name, request)

        monkeypatch.setattr(Wire, "sent", sent_without_transaction)
        assert type(None) not in self.create_three()


def test_more_than_a_transaction_may_touch_in_the_legacy_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with userlock_emulator.start(concurrency_mode="optimistic-with-entity-groups") as legacy:
        monkeypatch.setenv("DATASTORE_EMULATOR_HOST", legacy.host)
        client = ndb.Client(project="legacy")
        # Within the context of the other client.
        with ndb.context.get_context().new(client=client).use():
            with allow_unlocked("arranging data"):
                new(Learner, "learner-40", 7)
                learners = [Learner(id=f"learner-{number}") for number in range(60)]
                futures = ndb.put_multi_async(learners)
                errors = [future.exception() for future in futures if future.wait() is None]
            assert [number for number, error in enumerate(errors) if error] == [40]
            assert Learner.query().count() == 60


class TestDeletes:
    def test_an_entity_that_is_gone_counts_as_deleted(
        self, datastore: userlock_emulator.Emulator
    ) -> None:
        key = new(Learner)
        with userlock.global_lock("ann"):
            key.get()
            datastore.faults.drop_reply()
            key.delete()
        assert stored(key) is None

    def test_an_entity_that_was_created_again_does_not(
        self, datastore: userlock_emulator.Emulator, overtake: Overtake
    ) -> None:
        key = new(Learner)

        def replace() -> None:
            with userlock.global_lock("ann"):
                key.delete()
                Learner(key=key, points=7).put()

        with userlock.global_lock("ann"):
            key.get()
            overtake(replace)
            datastore.faults.unavailable(rpc="Commit")
            with pytest.raises(userlock.StaleWriteError) as caught:
                key.delete()
        assert caught.value.may_have_landed
        assert stored(key) == 7
