"""The store contract on the memory store, time by hand; and the faults that it plays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.leases import existing
from userlock.lock.store import GRACE_SECONDS, LeaseStore, Stored, StoreUnavailable
from userlock.stores.memory import MemoryStore, Verb
from userlock.testing import (
    FenceContract,
    ForkContract,
    LeaseStoreContract,
    ManualClock,
    WakeContract,
)

#: One command of each kind, on the lock "ann".
COMMANDS: dict[Verb, Callable[[MemoryStore], object]] = {
    "create": lambda store: store.create("ann", b"again", 60),
    "read": lambda store: store.read("ann"),
    "swap": lambda store: store.swap("ann", version_of(store), b"next", 60),
    "remove": lambda store: store.remove("ann", version_of(store)),
    "append": lambda store: store.append("ann", b"\nline"),
}


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


def version_of(store: MemoryStore, lock_id: str = "ann") -> object:
    return existing(store.read(lock_id)).version


def record_of(store: MemoryStore, lock_id: str = "ann") -> bytes | None:
    stored = store.read(lock_id)
    return None if stored is None else stored.record


class TestMemory(LeaseStoreContract, ForkContract, FenceContract, WakeContract):
    @pytest.fixture
    def store(self, store: MemoryStore) -> MemoryStore:
        return store

    def now(self, store: LeaseStore) -> float:
        assert isinstance(store, MemoryStore)
        return store.clock.now()

    def wait(self, store: LeaseStore, seconds: float) -> None:
        assert isinstance(store, MemoryStore)
        store.clock.sleep(seconds)


class TestTime:
    def test_it_lapses_and_goes_to_the_second(self, store: MemoryStore, clock: ManualClock) -> None:
        store.create("ann", b"first", 5)
        clock.advance(4.999)
        stored = existing(store.read("ann"))
        assert stored[:3] == (b"first", version_of(store), False)
        assert stored.seconds_left == pytest.approx(0.001)
        clock.advance(0.001)
        assert store.read("ann") == Stored(b"first", version_of(store), True, 0)
        clock.advance(GRACE_SECONDS - 0.001)
        assert record_of(store) == b"first"
        clock.advance(0.001)
        assert store.read("ann") is None


class TestOutages:
    @pytest.mark.parametrize("verb", COMMANDS)
    def test_faults_befall_any_verb_in_their_order(self, store: MemoryStore, verb: Verb) -> None:
        store.create("ann", b"first", 60)
        version = version_of(store)
        commands = {
            **COMMANDS,
            "swap": lambda s: s.swap("ann", version, b"next", 60),
            "remove": lambda s: s.remove("ann", version),
        }
        store.lose_command(verb)
        store.lose_reply(verb)
        for reason in ("command was lost", "reply was lost"):
            with pytest.raises(StoreUnavailable, match=reason):
                commands[verb](store)
        commands[verb](store)

    def test_a_late_command_arrives_on_request(
        self, store: MemoryStore, clock: ManualClock
    ) -> None:
        store.delay("create")
        with pytest.raises(StoreUnavailable, match="late") as caught:
            store.create("ann", b"late", 1)
        assert (caught.value.sent, caught.value.slow) == (True, True)
        clock.advance(30)
        assert store.read("ann") is None
        [version] = store.arrive()
        stored = store.read("ann")
        assert stored == Stored(b"late", version, False, 1), "its time begins at the store"
        assert store.arrive() == [], "once"

    def test_calls_are_counted(self, store: MemoryStore) -> None:
        store.create("ann", b"first", 60)
        store.go_down()
        with pytest.raises(StoreUnavailable):
            store.read("ann")
        assert store.asked == {"create": 1, "read": 1}
