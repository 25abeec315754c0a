"""Every way to read, every way to write, and a rival in between: nothing stale lands."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.ndb.actions import Elsewhere, Overtake, stored, stored_elsewhere
from tests.contract.ndb.models import Learner
from tests.unit.lock.pulse import live
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

pytestmark = pytest.mark.usefixtures("context")


def _put_before(key: Any) -> Any:
    entity = key.get()
    entity.name = "put before"
    entity.put()
    return entity


def _committed_before(key: Any) -> Any:
    return ndb.transaction(lambda: _put_before(key))


def _deleted_and_created_again(key: Any) -> Any:
    points = key.get().points
    key.delete()
    entity = Learner(key=key, points=points)
    entity.put()
    return entity


def _query() -> Any:
    return Learner.query(Learner.points == 0)


#: How an entity, with no points, is read under its lock; the table in `ways` has more.
READS: dict[str, Callable[[Any], Any]] = {
    "eventually consistent": lambda key: key.get(read_consistency=ndb.EVENTUAL, use_cache=False),
    "eventually consistent query": lambda key: _query().fetch(read_consistency=ndb.EVENTUAL)[0],
    "earlier transaction": lambda key: ndb.transaction(key.get),
    "read-only transaction": lambda key: ndb.transaction(key.get, read_only=True),
    "put before": _put_before,
    "put in a transaction before": _committed_before,
    "deleted and created again": _deleted_and_created_again,
    "pickle": lambda key: pickle.loads(pickle.dumps(key.get(use_cache=False))),  # noqa: S301
}


def _put_in_batch(entity: Any) -> None:
    others = [Learner(id=f"other-{number}") for number in range(3)]
    futures = ndb.put_multi_async([*others[:1], entity, *others[1:]])
    for future in futures:
        future.wait()
    assert [other.key.get(use_cache=False) is not None for other in others] == [True] * 3
    futures[1].get_result()


def _delete_in_transaction(entity: Any) -> None:
    ndb.transaction(entity.key.delete)


#: How it is put back; the table in `ways` has more.
PUTS: dict[str, Callable[[Any], Any]] = {
    "put": lambda entity: entity.put(),
    "put in a batch": _put_in_batch,
    "put in a transaction": lambda entity: ndb.transaction(entity.put),
}

#: How it is deleted, when it is in the context cache; the table in `ways` has more.
DELETES: dict[str, Callable[[Any], Any]] = {
    "delete": lambda entity: entity.key.delete(),
    "delete in a transaction": _delete_in_transaction,
}


def _change(key: Any) -> None:
    other = key.get()
    other.points = 5
    other.put()


def _delete(key: Any) -> None:
    key.delete()


def _replace(key: Any) -> None:
    key.delete()
    Learner(key=key, points=5).put()


def _put_unchanged_but_for_the_name(key: Any) -> None:
    other = key.get()
    other.name = "somebody else"
    other.put()


#: Changes by another request in between, under the lock as far as it knows.
RIVALS: dict[str, Callable[[Any], None]] = {
    "changes it": _change,
    "changes another property": _put_unchanged_but_for_the_name,
    "deletes it": _delete,
    "deletes it and creates it again": _replace,
}


def under_lock(action: Callable[[Any], None], key: Any) -> Callable[[], None]:
    """Write as another process, which takes the lock first."""

    def run() -> None:
        with userlock.global_lock(key.id()):
            action(key)

    return run


# --- the table -----------------------------------------------------------------------------------

EACH_PUT = pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
PUT_AND_DELETE = pytest.mark.parametrize(
    "write", [PUTS["put"], DELETES["delete"]], ids=["put", "delete"]
)
WRITES = {**PUTS, **DELETES}


@pytest.fixture(autouse=True)
def _others_may_be_written() -> None:
    """Switch the checks of locks off: the fence refuses here."""
    userlock.configure(enforcement="off")


@pytest.mark.parametrize("put", [PUTS["put"], PUTS["put in a transaction"]])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_stale_write_is_refused(
    key: Any, read: Callable[[Any], Any], put: Callable[[Any], Any], overtake: Overtake
) -> None:
    with userlock.global_lock("ann"):
        learner = read(key)
        overtake(under_lock(RIVALS["changes it"], key))
        learner.points += 100
        with pytest.raises(userlock.StaleWriteError) as caught:
            put(learner)
    assert caught.value.key == key
    assert not caught.value.may_have_landed
    facts = stored(key)
    assert facts is not None
    assert facts[0] == 5


@EACH_MODE
@EACH_PUT
def test_the_next_put_builds_on_the_one_that_landed(
    key: Any, put: Callable[[Any], Any], overtake: Overtake
) -> None:
    with userlock.global_lock("ann"):
        learner = key.get()
        for points in (1, 2):
            learner.points = points
            put(learner)
            ndb.delete_multi([ndb.Key(Learner, f"other-{number}") for number in range(3)])
        assert stored(key) == (2, None)
        overtake(under_lock(RIVALS["changes it"], key))
        learner.points += 100
        with pytest.raises(userlock.StaleWriteError):
            put(learner)
    assert stored(key) == (5, None)


@PUT_AND_DELETE
def test_without_fencing_an_update_is_lost(
    key: Any, write: Callable[[Any], Any], overtake: Overtake
) -> None:
    """The negative control."""
    userlock.configure(fencing=False)
    with userlock.global_lock("ann"):
        learner = key.get()
        overtake(under_lock(RIVALS["changes it"], key))
        learner.points += 100
        write(learner)
    assert stored(key) == (None if write in DELETES.values() else (100, None))


# --- each rival, and why the lock does not exclude it -----------------------------------------


def check(key: Any, write: Callable[[Any], Any], elsewhere: Elsewhere, learner: Any) -> None:
    """Write; what the rival has left stays."""
    before = stored_elsewhere(key, elsewhere)
    gone = before is None and write in DELETES.values()  # as it should be
    learner.points += 100
    with nullcontext() if gone else pytest.raises(userlock.StaleWriteError):
        write(learner)
    assert stored_elsewhere(key, elsewhere) == before


@pytest.mark.parametrize(
    ("rival", "write", "locked"),
    [
        *(
            pytest.param(rival, write, True, id=f"{name}-{how}")
            for name, rival in RIVALS.items()
            for how, write in WRITES.items()
        ),
        pytest.param(RIVALS["changes it"], PUTS["put"], False, id="put without a lock"),
        pytest.param(RIVALS["changes it"], DELETES["delete"], False, id="delete without a lock"),
    ],
)
def test_each_rival(
    key: Any,
    rival: Callable[[Any], None],
    write: Callable[[Any], Any],
    locked: bool,
    elsewhere: Elsewhere,
    overtake: Overtake,
) -> None:
    with userlock.global_lock("ann") if locked else nullcontext():
        learner = key.get()
        overtake(under_lock(rival, key))
        check(key, write, elsewhere, learner)


def _ran_out(store: MemoryStore, clock: ManualClock) -> None:
    clock.advance(61)


def _found_lost(store: MemoryStore, clock: ManualClock) -> None:
    store.evict("ann")
    with pytest.raises(userlock.LockNotHeld):
        userlock.current_scope().held["ann"].extend(60)


def _broken(store: MemoryStore, clock: ManualClock) -> None:
    userlock.break_lock("ann")


@PUT_AND_DELETE
class TestEachLapse:
    @pytest.mark.parametrize("lapse", [_ran_out, _found_lost, _broken])
    def test_a_lease_that_is_gone(
        self,
        key: Any,
        lapse: Callable[[MemoryStore, ManualClock], None],
        write: Callable[[Any], Any],
        store: MemoryStore,
        clock: ManualClock,
        elsewhere: Elsewhere,
    ) -> None:
        with userlock.global_lock("ann"):
            learner = key.get()
            lapse(store, clock)
            elsewhere(under_lock(RIVALS["changes it"], key))
            check(key, write, elsewhere, learner)

    def test_degraded_leases(
        self, key: Any, write: Callable[[Any], Any], store: MemoryStore, elsewhere: Elsewhere
    ) -> None:
        store.go_down("connection refused")
        with userlock.global_lock("ann"):
            learner = key.get()
            elsewhere(under_lock(RIVALS["changes it"], key))
            check(key, write, elsewhere, learner)

    def test_a_heartbeat_that_finds_it_lost(
        self,
        key: Any,
        write: Callable[[Any], Any],
        service: userlock.LockService,
        store: MemoryStore,
        clock: ManualClock,
        elsewhere: Elsewhere,
    ) -> None:
        with userlock.global_lock("ann", heartbeat=True) as lock:
            learner = key.get()
            store.evict("ann")
            live(service, clock, 11)
            assert lock.lost
            elsewhere(under_lock(RIVALS["changes it"], key))
            check(key, write, elsewhere, learner)


@EACH_MODE
@pytest.mark.parametrize("delete", DELETES.values(), ids=DELETES)
def test_a_delete_builds_on_the_put_before_it(
    key: Any, delete: Callable[[Any], Any], elsewhere: Elsewhere, overtake: Overtake
) -> None:
    with userlock.global_lock("ann"):
        learner = key.get()
        learner.points = 7
        learner.put()
        overtake(under_lock(RIVALS["changes it"], key))
        check(key, delete, elsewhere, learner)
        again = key.get()
        again.put_async()
        delete(again)
    assert stored(key) is None
