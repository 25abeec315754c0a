"""Servers that tell no versions, or take no notice of `base_version`: writes are compared."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import emulator
import userlock
from tests.contract.ndb.actions import Elsewhere, change
from tests.contract.ndb.models import Learner, Marked
from tests.contract.ndb.servers import Wire, WithoutBaseVersion, WithoutVersions
from userlock.events import Event, StaleWrite
from userlock.ndb import server
from userlock.ndb.hooks import reading
from userlock.stores import MemoryStore

pytestmark = pytest.mark.usefixtures("_quick_retries", "context")

SERVERS: list[type[Wire]] = [WithoutVersions, WithoutBaseVersion]


@pytest.fixture(params=SERVERS)
def ndb_client(ndb_client: ndb.Client, request: pytest.FixtureRequest) -> ndb.Client:
    request.param(ndb_client)
    return ndb_client


@pytest.fixture(autouse=True)
def _as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has asked the server anything yet."""
    monkeypatch.setattr(server, "_honoured", {})
    monkeypatch.setattr(server, "_told_of_versions", False)


@pytest.fixture
def key(context: Any, _as_in_a_new_process: None) -> Any:
    with userlock.global_lock("ann"):
        Learner(id="ann").put()
    context.clear_cache()
    return ndb.Key(Learner, "ann")


def stored(key: Any) -> int | None:
    found = key.get(use_cache=False)
    return None if found is None else found.points


def add(key: Any, points: int = 1) -> None:
    with userlock.global_lock("ann"):
        learner = key.get()
        learner.points += points
        learner.put()


def put_what_is_stale(key: Any, store: MemoryStore, elsewhere: Elsewhere) -> None:
    with userlock.global_lock("ann"):
        learner = key.get()
        store.evict("ann")
        elsewhere(lambda: change(key, 5))
        learner.points += 100
        learner.put()


def test_it_is_said_once(
    key: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_honoured", {})
    for _ in range(3):
        add(key)
    said = [record.getMessage() for record in caplog.records if record.name == server.__name__]
    assert len(said) == 1
    assert "in a short transaction" in said[0]
    assert stored(key) == 3


def test_without_comparing_an_update_is_lost(
    key: Any,
    store: MemoryStore,
    elsewhere: Elsewhere,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The negative control: without each of the two ways in which it is found out."""
    monkeypatch.setattr(server, "honours_base_version", lambda client: True)
    monkeypatch.setattr(reading, "fingerprint", lambda entity_pb: 0)
    put_what_is_stale(key, store, elsewhere)
    assert stored(key) == 100


def test_a_stale_write_says_what_it_knows(
    key: Any, store: MemoryStore, elsewhere: Elsewhere, events: list[Event]
) -> None:
    with pytest.raises(userlock.StaleWriteError) as caught:
        put_what_is_stale(key, store, elsewhere)
    assert caught.value.read_version >= 0
    assert "-" not in str(caught.value.read_version)
    assert len([event for event in events if isinstance(event, StaleWrite)]) == 1
    assert stored(key) == 5


def test_only_the_stale_one_of_a_batch_is_refused(elsewhere: Elsewhere) -> None:
    """A batch is several transactions: the legacy mode allows each 25 entity groups."""
    names = [f"learner-{number}" for number in range(60)]
    keys = [ndb.Key(Learner, name) for name in names]
    with userlock.suppress("arranging data"):
        ndb.put_multi([Learner(key=key) for key in keys])
        learners = ndb.get_multi(keys, use_cache=False)
        elsewhere(lambda: change(keys[17], 1000))
        for learner in learners:
            learner.points = 1
        futures = ndb.put_multi_async(learners)
        errors = [future.exception() for future in futures if future.wait() is None]
    assert [number for number, error in enumerate(errors) if error] == [17]
    assert isinstance(errors[17], userlock.StaleWriteError)
    assert errors[17].others_landed == 24
    assert [stored(key) for key in keys] == [1] * 17 + [1000] + [1] * 42


def test_contention_is_tried_again(key: Any, datastore: emulator.Emulator) -> None:
    add(key)
    fault = datastore.faults.abort(2, kind="TestedLearner")
    add(key)
    assert fault.hits == 2
    assert stored(key) == 2


def test_what_met_itself_is_recognised(datastore: emulator.Emulator) -> None:
    with userlock.global_lock("ann"):
        learner = Marked(id="ann")
        learner.put()
        learner.points = 5
        datastore.faults.drop_reply(kind="TestedMarked")
        learner.put()
    assert stored(learner.key) == 5


def test_what_may_have_met_itself_says_so(key: Any, datastore: emulator.Emulator) -> None:
    add(key)
    datastore.faults.drop_reply(kind="TestedLearner")
    with pytest.raises(userlock.StaleWriteError) as caught:
        add(key)
    assert caught.value.may_have_landed
    assert stored(key) == 2


def test_of_two_creators_one_wins(store: MemoryStore, elsewhere: Elsewhere) -> None:
    def create(points: int) -> None:
        with userlock.global_lock("bob"):
            Learner(id="bob", points=points).put()

    with userlock.global_lock("bob"):
        store.evict("bob")
        elsewhere(lambda: create(7))
        with pytest.raises(userlock.EntityExistsError):
            Learner(id="bob").put()
    assert stored(ndb.Key(Learner, "bob")) == 7


def test_a_delete_does_not_pass_a_put_that_is_under_way(key: Any) -> None:
    with userlock.global_lock("ann"):
        learner = key.get(use_cache=False)
        learner.points = 5
        learner.put_async()
        key.delete()
    assert stored(key) is None


class TestInATransaction:
    @pytest.mark.parametrize("delete", [False, True])
    def test_what_was_read_before_it_is_compared_in_it(
        self, key: Any, store: MemoryStore, elsewhere: Elsewhere, delete: bool
    ) -> None:
        attempts: list[int] = []
        with userlock.global_lock("ann"):
            learner = key.get()
            store.evict("ann")
            elsewhere(lambda: change(key, 5))

            def work() -> None:
                attempts.append(1)
                learner.points += 100
                key.delete() if delete else learner.put()

            with pytest.raises(userlock.StaleWriteError):
                ndb.transaction(work)
        assert attempts == [1]
        assert stored(key) == 5

    def test_what_was_deleted(self, key: Any, store: MemoryStore, elsewhere: Elsewhere) -> None:
        def delete() -> None:
            with userlock.global_lock("ann"):
                key.delete()

        with userlock.global_lock("ann"):
            learner = key.get()
            store.evict("ann")
            elsewhere(delete)
            with pytest.raises(userlock.StaleWriteError):
                ndb.transaction(learner.put)
        assert stored(key) is None

    def test_what_was_read_in_it_is_its_own_business(self, key: Any) -> None:
        with userlock.global_lock("ann"):
            ndb.transaction(lambda: add(key, 5))
            add(key, 5)
        assert stored(key) == 10
