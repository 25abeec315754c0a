"""Every way to read, every way to write, and a rival in between: nothing stale lands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, stored, stored_elsewhere
from tests.contract.ndb.interleavings import DELETES, PUTS, READS, RIVALS, under_lock
from tests.contract.ndb.models import Learner
from tests.unit.lock.pulse import live
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

pytestmark = pytest.mark.usefixtures("context")

#: How a server keeps transactions apart.
EACH_MODE = pytest.mark.parametrize(
    "concurrency_mode",
    ["pessimistic", "optimistic", "optimistic-with-entity-groups"],
    indirect=True,
    scope="session",
)
EACH_PUT = pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
PUT_AND_DELETE = pytest.mark.parametrize(
    "write", [PUTS["put"], DELETES["delete"]], ids=["put", "delete"]
)
#: Outside of transactions and in them; the table in `ways` has the others.
WRITES = {
    **{name: PUTS[name] for name in ("put", "put in a batch", "put in a transaction")},
    **{name: DELETES[name] for name in ("delete", "delete in a transaction")},
}


@pytest.fixture(autouse=True)
def _others_may_be_written() -> None:
    """Switch the checks of locks off: the fence refuses here."""
    userlock.configure(enforcement="off")


@pytest.mark.parametrize("put", [PUTS["put"], PUTS["put in a transaction"]])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_stale_write_is_refused(
    key: Any,
    read: Callable[[Any], Any],
    put: Callable[[Any], Any],
    store: MemoryStore,
    elsewhere: Elsewhere,
) -> None:
    with userlock.global_lock("ann"):
        learner = read(key)
        store.evict("ann")
        elsewhere(under_lock(RIVALS["changes it"], key))
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
    key: Any, put: Callable[[Any], Any], store: MemoryStore, elsewhere: Elsewhere
) -> None:
    with userlock.global_lock("ann"):
        learner = key.get()
        for points in (1, 2):
            learner.points = points
            put(learner)
            ndb.delete_multi([ndb.Key(Learner, f"other-{number}") for number in range(3)])
        assert stored(key) == (2, None)
        store.evict("ann")
        elsewhere(under_lock(RIVALS["changes it"], key))
        learner.points += 100
        with pytest.raises(userlock.StaleWriteError):
            put(learner)
    assert stored(key) == (5, None)


@PUT_AND_DELETE
def test_without_fencing_an_update_is_lost(
    key: Any, write: Callable[[Any], Any], store: MemoryStore, elsewhere: Elsewhere
) -> None:
    """The negative control."""
    userlock.configure(fencing=False)
    with userlock.global_lock("ann"):
        learner = key.get()
        store.evict("ann")
        elsewhere(under_lock(RIVALS["changes it"], key))
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
    store: MemoryStore,
    elsewhere: Elsewhere,
) -> None:
    with userlock.global_lock("ann") if locked else nullcontext():
        learner = key.get()
        store.evict("ann")
        elsewhere(under_lock(rival, key))
        check(key, write, elsewhere, learner)


def _ran_out(store: MemoryStore, clock: ManualClock) -> None:
    clock.advance(61)


def _extended(store: MemoryStore, clock: ManualClock) -> None:
    userlock.current_scope().held["ann"].extend(300)
    clock.advance(299)
    store.evict("ann")


def _found_lost(store: MemoryStore, clock: ManualClock) -> None:
    store.evict("ann")
    with pytest.raises(userlock.LockNotHeld):
        userlock.current_scope().held["ann"].extend(60)


def _broken(store: MemoryStore, clock: ManualClock) -> None:
    userlock.break_lock("ann")


def _restarted(store: MemoryStore, clock: ManualClock) -> None:
    store.go_down("connection refused")
    store.evict("ann")
    store.come_back()


@PUT_AND_DELETE
class TestEachLapse:
    @pytest.mark.parametrize("lapse", [_ran_out, _extended, _found_lost, _broken, _restarted])
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
    key: Any, delete: Callable[[Any], Any], store: MemoryStore, elsewhere: Elsewhere
) -> None:
    with userlock.global_lock("ann"):
        learner = key.get()
        learner.points = 7
        learner.put()
        store.evict("ann")
        elsewhere(under_lock(RIVALS["changes it"], key))
        check(key, delete, elsewhere, learner)
        again = key.get()
        again.put_async()
        delete(again)
    assert stored(key) is None
