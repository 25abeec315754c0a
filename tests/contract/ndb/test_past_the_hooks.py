"""Another ndb, which has all that is hooked into and does not call it: no write passes silently."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.ndb import _datastore_api, tasklets

import userlock
from tests.contract.ndb.caches import EmptyGlobalCache
from tests.contract.ndb.models import Learner

pytestmark = pytest.mark.usefixtures("context")


class Simple(userlock.Model):
    """Written by anybody, and fenced."""

    _write_policy = userlock.WritePolicy.unsafe("there is nothing to get wrong")

    points = ndb.IntegerProperty(default=0)


def another_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes its messages in another way."""
    monkeypatch.setattr(_datastore_api, "helpers", _datastore_api.helpers._helpers)


def other_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batches are filled in another way."""

    def put(self: Any, entity_pb: Any) -> Any:
        return _into(self, datastore_types.Mutation(upsert=entity_pb))

    _replace(monkeypatch, "put", put)


def other_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletes are put into a batch in another way."""

    def delete(self: Any, key: Any) -> Any:
        return _into(self, datastore_types.Mutation(delete=key.to_protobuf()))

    _replace(monkeypatch, "delete", delete)


def _into(batch: Any, mutation: Any) -> Any:
    future = tasklets.Future("write")
    batch.mutations.append(mutation)
    batch.futures.append(future)
    if isinstance(batch, _datastore_api._TransactionalCommitBatch):
        future.set_result(None)
    return future


def _replace(monkeypatch: pytest.MonkeyPatch, name: str, function: Any) -> None:
    for batch_class in (
        _datastore_api._NonTransactionalCommitBatch,
        _datastore_api._TransactionalCommitBatch,
    ):
        monkeypatch.setattr(batch_class, name, function)


CHANGES = [another_message, other_batches]


def stale(cls: Any, elsewhere: Any) -> Any:
    """An object of an entity that somebody else has changed since it was read."""
    cls(id="ann").put()
    old = cls.get_by_id("ann", use_cache=False)

    def change() -> None:
        with userlock.suppress("the other one of two"):
            entity = cls.get_by_id("ann")
            entity.points = 50
            entity.put()

    elsewhere(change)
    old.points = 1
    return old


def stored(cls: Any) -> int | None:
    entity = cls.get_by_id("ann", use_cache=False)
    return None if entity is None else entity.points


@pytest.mark.parametrize("change", CHANGES)
class TestPuts:
    def test_put(self, elsewhere: Any, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
        old = stale(Simple, elsewhere)
        with pytest.raises(userlock.StaleWriteError):
            old.put()  # the control: the hooks are called
        assert stored(Simple) == 50

        change(monkeypatch)
        with pytest.raises(userlock.WriteNotFenced) as caught:
            old.put()
        assert caught.value.key == old.key
        assert (caught.value.lock_id, caught.value.stored) == (None, True)
        assert "test_past_the_hooks.py" in str(caught.value.put_at)
        assert "may have overwritten another one" in str(caught.value)
        assert stored(Simple) == 1, "it was not fenced indeed"

    def test_a_new_one(self, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
        change(monkeypatch)
        with pytest.raises(userlock.WriteNotFenced) as caught:
            Simple().put()
        assert caught.value.key is not None

    @pytest.mark.parametrize("put", [lambda e: e.put_async(), lambda e: ndb.put_multi([e])])
    def test_under_a_lock(
        self, monkeypatch: pytest.MonkeyPatch, change: Any, put: Callable[[Any], object]
    ) -> None:
        change(monkeypatch)
        with (
            pytest.raises(userlock.WriteNotFenced) as caught,
            userlock.global_lock("ann"),
        ):
            put(Learner(id="ann"))
        assert caught.value.lock_id == "ann"

    def test_put_under_a_lock_is_told_once(
        self, monkeypatch: pytest.MonkeyPatch, change: Any
    ) -> None:
        change(monkeypatch)
        with userlock.global_lock("ann"), pytest.raises(userlock.WriteNotFenced):
            Learner(id="ann").put()

    @pytest.mark.parametrize("put", [lambda e: e.put(), lambda e: e.put_async()])
    def test_in_a_transaction(
        self,
        elsewhere: Any,
        monkeypatch: pytest.MonkeyPatch,
        change: Any,
        put: Callable[[Any], object],
    ) -> None:
        old = stale(Simple, elsewhere)
        change(monkeypatch)
        with pytest.raises(userlock.WriteNotFenced) as caught:
            ndb.transaction(lambda: put(old))
        assert not caught.value.stored
        assert "is rolled back" in str(caught.value)
        assert stored(Simple) == 50

    def test_a_transaction_that_takes_no_notice_of_it(
        self, elsewhere: Any, monkeypatch: pytest.MonkeyPatch, change: Any
    ) -> None:
        """Also of a lock that is left within it."""
        old = stale(Simple, elsewhere)
        change(monkeypatch)

        def careless() -> None:
            with contextlib.suppress(userlock.WriteNotFenced), userlock.global_lock("ann"):
                old.put()
                Learner(id="ann").put_async()

        with pytest.raises(userlock.WriteNotFenced):
            ndb.transaction(careless)
        assert (stored(Simple), stored(Learner)) == (50, None)

    def test_a_context_within_a_transaction(
        self, elsewhere: Any, monkeypatch: pytest.MonkeyPatch, change: Any
    ) -> None:
        old = stale(Simple, elsewhere)
        change(monkeypatch)

        def within() -> None:
            with ndb.get_context().new().use():
                old.put()

        with pytest.raises(userlock.WriteNotFenced):
            ndb.transaction(within)
        assert stored(Simple) == 50

    def test_many_puts_under_one_lock(self, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
        """More than are remembered once they are done."""
        with (  # noqa: PT012
            pytest.raises(userlock.WriteNotFenced),
            userlock.global_lock("ann"),
        ):
            with monkeypatch.context() as changed:
                change(changed)
                Learner(id="ann").put_async().result()
            learner = Learner.get_by_id("ann")
            for _ in range(200):
                learner.put_async().result()

    def test_without_fencing_nobody_asks(
        self, service: userlock.LockService, monkeypatch: pytest.MonkeyPatch, change: Any
    ) -> None:
        change(monkeypatch)
        userlock.configure(service=service, fencing=False)
        Simple(id="ann").put()
        assert stored(Simple) == 0


class TestDeletes:
    def test_under_a_lock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with userlock.global_lock("ann"):
            Learner(id="ann").put()
        other_deletes(monkeypatch)
        with (
            pytest.raises(userlock.WriteNotFenced) as caught,
            userlock.global_lock("ann"),
        ):
            ndb.Key(Learner, "ann").delete()
        assert "was deleted past userlock" in str(caught.value)
        assert "deleted at: " in str(caught.value)
        assert stored(Learner) is None

    def test_in_a_transaction(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Simple(id="ann").put()
        other_deletes(monkeypatch)
        with pytest.raises(userlock.WriteNotFenced):
            ndb.transaction(ndb.Key(Simple, "ann").delete)
        assert stored(Simple) == 0


class OnlyCached(Simple):
    """Not in Datastore."""

    _use_datastore = False


class TestNoFalseAlarm:
    """What is for the global cache only makes no mutation."""

    @pytest.fixture(autouse=True)
    def _global_cache(self, context: Any) -> Iterator[None]:
        with context.new(global_cache=EmptyGlobalCache()).use():
            yield

    @pytest.mark.parametrize(
        "put",
        [
            lambda entity: entity.put(use_datastore=False),
            lambda entity: entity.put(use_datastore=0),
            lambda entity: entity.put_async(use_datastore=False).result(),
            lambda entity: ndb.put_multi([entity], use_datastore=False),
        ],
    )
    def test_a_put_to_the_cache(self, put: Callable[[Any], object]) -> None:
        with userlock.global_lock("ann"):
            put(Learner(id="ann"))
            ndb.Key(Learner, "ann").delete(use_datastore=False)
        ndb.transaction(lambda: put(Simple(id="ann")))

    def test_a_policy_that_changes_meanwhile(self) -> None:
        """What holds is what held when the write began."""

        current = ndb.get_context()
        with userlock.global_lock("ann"), userlock.global_lock("bob"):
            current.set_datastore_policy(False)
            Learner(id="ann").put_async().result()
            ndb.Key(Learner, "bob").delete()
            current.set_datastore_policy(None)

        def in_transaction() -> None:
            current = ndb.get_context()
            current.set_datastore_policy(False)
            Simple(id="ann").put_async().result()  # a delete fails in ndb 2.3
            current.set_datastore_policy(None)

        ndb.transaction(in_transaction)

    def test_a_policy_that_fails(self) -> None:
        """Its error is the write's, as in ndb, and not that of beginning it."""

        def broken(key: Any) -> bool:
            raise ZeroDivisionError

        ndb.get_context().set_datastore_policy(broken)
        for begun in (Simple(id="ann").put_async(), ndb.Key(Simple, "ann").delete_async()):
            with pytest.raises(ZeroDivisionError):
                begun.result()

    def test_a_model_that_is_only_cached(self) -> None:
        OnlyCached(id="ann", points=3).put()
        with userlock.global_lock("ann"):
            OnlyCached(id="bob").put_async()
            ndb.Key(OnlyCached, "bob").delete()
