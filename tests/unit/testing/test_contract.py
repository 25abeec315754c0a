"""The contract suites find what breaks them: one negative control for each contract."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest

from userlock.lock.store import LeaseStore, Stored
from userlock.outbox.engines import EngineError, Wake
from userlock.stores import MemoryStore
from userlock.testing import (
    EngineContract,
    EngineForkContract,
    FenceContract,
    ForkContract,
    ManualClock,
    RaceContract,
    TimeContract,
    VerbContract,
    WakeContract,
)
from userlock.testing.contract import extras


class SwapIgnoresVersion(MemoryStore):
    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> int | None:
        stored = self.read(lock_id)
        return stored and super().swap(lock_id, stored.version, record, ttl_seconds)


class NeverLapses(MemoryStore):
    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        stored = super().read(lock_id, hurry=hurry)
        return stored and stored._replace(lapsed=False)


class BreaksInChildren(MemoryStore):
    def __init__(self, *, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self._process = os.getpid()

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        if os.getpid() != self._process:
            raise OSError("this is another's connection")
        return super().create(lock_id, record, ttl_seconds)


class HurryReadsNothing(MemoryStore):
    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        return None if hurry else super().read(lock_id)


class FenceStandsStill(MemoryStore):
    def fence(self, lock_id: str, line: bytes) -> tuple[Stored, int] | None:
        answer = super().fence(lock_id, line)
        return None if answer is None else (answer[0], int(self.clock.now()))


class WakesNobody(MemoryStore):
    def append_and_wake(self, lock_id: str, line: bytes) -> Stored | None:
        return self.append(lock_id, line)


class _Timed(TimeContract):
    """The contract of times, on a manual clock."""

    def now(self, store: LeaseStore) -> float:
        assert isinstance(store, MemoryStore)
        return store.clock.now()

    def wait(self, store: LeaseStore, seconds: float) -> None:
        assert isinstance(store, MemoryStore)
        store.clock.sleep(seconds)


class _OfSwaps(RaceContract):
    def test_one_of_many(self, store: LeaseStore) -> None:
        self.test_one_of_many_wins(store, "swap")


@pytest.mark.parametrize(
    ("contract", "name", "broken"),
    [
        (VerbContract, "test_reading_in_a_hurry_reads_the_same", HurryReadsNothing),
        (_OfSwaps, "test_one_of_many", SwapIgnoresVersion),
        (_Timed, "test_a_lapsed_record_can_still_be_changed", NeverLapses),
        (ForkContract, "test_a_forked_child_has_a_store_of_its_own", BreaksInChildren),
        (FenceContract, "test_numbers_grow_with_each_call", FenceStandsStill),
        (WakeContract, "test_a_release_wakes_the_first_waiter", WakesNobody),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_store_that_breaks_a_promise_is_found_out(
    contract: Callable[[], Any],
    name: str,
    broken: type[MemoryStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "PATIENCE", 0.05)
    test = getattr(contract(), name)
    test(MemoryStore(clock=ManualClock()))
    with pytest.raises((AssertionError, OSError)):
        test(broken(clock=ManualClock()))


class Engine:
    """An engine in memory that delivers at once."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.process = os.getpid()
        # What a child delivers reaches the test by this pipe.
        self.reading, self.writing = os.pipe()

    def connect(self, deliver: Callable[[str], object]) -> None:
        pass

    def wake(self, messages: list[Wake], timeout: float) -> list[EngineError | None]:
        return [self.take(each) for each in messages]

    def take(self, message: Wake) -> EngineError | None:
        self.keys.append(message.key)
        if os.getpid() != self.process:
            os.write(self.writing, message.key.encode() + b"\n")
        return None

    def close(self) -> None:
        pass


class LosesSome(Engine):
    def take(self, message: Wake) -> EngineError | None:
        return None if len(self.keys) == 1 else super().take(message)


class FailsInChildren(Engine):
    def take(self, message: Wake) -> EngineError | None:
        if os.getpid() != self.process:
            return EngineError("a connection of the parent's")
        return super().take(message)


class _Delivered(EngineContract, EngineForkContract):
    """The contracts of engines, on one in memory."""

    def delivered(self, engine: Any) -> list[str]:
        os.set_blocking(engine.reading, False)
        with contextlib.suppress(BlockingIOError):
            engine.keys += os.read(engine.reading, 65536).decode().split()
        keys: list[str] = engine.keys
        return keys

    def now(self, engine: Any) -> float:
        return 0.0

    def wait(self, engine: Any, seconds: float) -> None:
        raise AssertionError("nothing was delivered")


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("test_each_message_that_is_taken_is_delivered", LosesSome),
        ("test_a_forked_child_has_connections_of_its_own", FailsInChildren),
    ],
)
def test_an_engine_that_breaks_a_rule_is_found_out(name: str, broken: type[Engine]) -> None:
    getattr(_Delivered(), name)(Engine())
    with pytest.raises(AssertionError):
        getattr(_Delivered(), name)(broken())
