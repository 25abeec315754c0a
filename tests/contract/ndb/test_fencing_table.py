"""Every way to read, every way to write, and a rival in between: nothing stale lands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.contract.ndb.actions import Elsewhere, stored, stored_elsewhere
from tests.contract.ndb.interleavings import DELETES, PUTS, READS, RIVALS, under_lock
from tests.contract.ndb.models import Learner
from tests.unit.lock.pulse import live
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

pytestmark = pytest.mark.usefixtures("context")

#: How a server keeps transactions apart.
MODES = ["pessimistic", "optimistic", "optimistic-with-entity-groups"]


@pytest.fixture(scope="module", params=MODES)
def server(request: pytest.FixtureRequest) -> Iterator[userlock_emulator.Emulator]:
    with userlock_emulator.start(concurrency_mode=request.param) as running:
        yield running


@pytest.fixture
def ndb_client(server: userlock_emulator.Emulator, monkeypatch: pytest.MonkeyPatch) -> ndb.Client:
    """Return a client of an empty server."""
    server.reset()
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return ndb.Client()


@pytest.fixture(autouse=True)
def _others_may_be_written() -> None:
    """Switch the checks of locks off: the fence refuses here."""
    userlock.configure(enforcement="off")


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS.keys())
@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
class TestEveryWay:
    def test_a_stale_write_is_refused(
        self,
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

    def test_the_next_put_builds_on_the_one_that_landed(
        self,
        key: Any,
        read: Callable[[Any], Any],
        put: Callable[[Any], Any],
        store: MemoryStore,
        elsewhere: Elsewhere,
    ) -> None:
        with userlock.global_lock("ann"):
            learner = read(key)
            for points in (1, 2):
                learner.points = points
                put(learner)
                ndb.delete_multi([ndb.Key(Learner, f"other-{number}") for number in range(3)])
            facts = stored(key)
            assert facts is not None
            assert facts[0] == 2
            store.evict("ann")
            elsewhere(under_lock(RIVALS["changes it"], key))
            learner.points += 100
            with pytest.raises(userlock.StaleWriteError):
                put(learner)
        facts = stored(key)
        assert facts is not None
        assert facts[0] == 5


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS.keys())
def test_without_fencing_an_update_is_lost(
    key: Any, put: Callable[[Any], Any], store: MemoryStore, elsewhere: Elsewhere
) -> None:
    """The negative control."""
    userlock.configure(fencing=False)
    with userlock.global_lock("ann"):
        learner = key.get()
        store.evict("ann")
        elsewhere(under_lock(RIVALS["changes it"], key))
        learner.points += 100
        put(learner)
    assert stored(key) == (100, None), "the other's five points are gone"


# --- why the lock does not exclude ----------------------------------------------------------


def _evicted(store: MemoryStore, clock: ManualClock) -> None:
    store.evict("ann")


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


LAPSES = [_evicted, _ran_out, _extended, _found_lost, _broken, _restarted]


@pytest.mark.parametrize("rival", RIVALS.values(), ids=RIVALS.keys())
class TestEveryLapse:
    def check(
        self, key: Any, write: Callable[[Any], Any], elsewhere: Elsewhere, learner: Any
    ) -> None:
        before = stored_elsewhere(key, elsewhere)
        if before is None and write in DELETES.values():
            write(learner)  # it is gone, as it should be
        else:
            with pytest.raises(userlock.StaleWriteError):
                write(learner)
        assert stored_elsewhere(key, elsewhere) == before

    @pytest.mark.parametrize("write", [PUTS["put"], DELETES["delete"]], ids=["put", "delete"])
    @pytest.mark.parametrize("lapse", LAPSES)
    def test_a_lease_that_is_gone(
        self,
        key: Any,
        lapse: Callable[[MemoryStore, ManualClock], None],
        rival: Callable[[Any], None],
        write: Callable[[Any], Any],
        store: MemoryStore,
        clock: ManualClock,
        elsewhere: Elsewhere,
    ) -> None:
        with userlock.global_lock("ann"):
            learner = key.get()
            lapse(store, clock)
            elsewhere(under_lock(rival, key))
            learner.points += 100
            self.check(key, write, elsewhere, learner)

    @pytest.mark.parametrize("write", [PUTS["put"], DELETES["delete"]], ids=["put", "delete"])
    def test_degraded_leases(
        self,
        key: Any,
        rival: Callable[[Any], None],
        write: Callable[[Any], Any],
        store: MemoryStore,
        elsewhere: Elsewhere,
    ) -> None:
        store.go_down("connection refused")
        with userlock.global_lock("ann"):
            learner = key.get()
            elsewhere(under_lock(rival, key))
            learner.points += 100
            self.check(key, write, elsewhere, learner)

    def test_a_heartbeat_that_finds_it_lost(
        self,
        key: Any,
        rival: Callable[[Any], None],
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
            elsewhere(under_lock(rival, key))
            learner.points += 100
            self.check(key, PUTS["put"], elsewhere, learner)

    @pytest.mark.parametrize("put", PUTS.values(), ids=PUTS.keys())
    def test_no_lock_at_all(
        self,
        key: Any,
        rival: Callable[[Any], None],
        put: Callable[[Any], Any],
        elsewhere: Elsewhere,
    ) -> None:
        learner = key.get()
        elsewhere(under_lock(rival, key))
        learner.points += 100
        self.check(key, put, elsewhere, learner)

    @pytest.mark.parametrize("delete", DELETES.values(), ids=DELETES.keys())
    def test_every_way_to_delete(
        self,
        key: Any,
        rival: Callable[[Any], None],
        delete: Callable[[Any], Any],
        store: MemoryStore,
        elsewhere: Elsewhere,
    ) -> None:
        with userlock.global_lock("ann"):
            learner = key.get()
            store.evict("ann")
            elsewhere(under_lock(rival, key))
            self.check(key, delete, elsewhere, learner)

    @pytest.mark.parametrize("delete", DELETES.values(), ids=DELETES.keys())
    def test_every_way_to_delete_without_a_lock(
        self,
        key: Any,
        rival: Callable[[Any], None],
        delete: Callable[[Any], Any],
        elsewhere: Elsewhere,
    ) -> None:
        learner = key.get()
        elsewhere(under_lock(rival, key))
        self.check(key, delete, elsewhere, learner)


@pytest.mark.parametrize("delete", DELETES.values(), ids=DELETES.keys())
class TestDeletes:
    def test_deletes_of_unchanged_entities(self, key: Any, delete: Callable[[Any], Any]) -> None:
        with userlock.global_lock("ann"):
            delete(key.get())
        assert stored(key) is None

    def test_deletes_of_entities_put_before(self, key: Any, delete: Callable[[Any], Any]) -> None:
        with userlock.global_lock("ann"):
            learner = key.get()
            learner.points = 7
            learner.put_async()
            delete(learner)
        assert stored(key) is None

    def test_without_fencing_a_change_is_lost(
        self, key: Any, delete: Callable[[Any], Any], store: MemoryStore, elsewhere: Elsewhere
    ) -> None:
        """The negative control."""
        userlock.configure(fencing=False)
        with userlock.global_lock("ann"):
            learner = key.get()
            store.evict("ann")
            elsewhere(under_lock(RIVALS["changes it"], key))
            delete(learner)
        assert stored(key) is None
