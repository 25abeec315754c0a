"""Stores that wait for a server: their verbs are coroutines, which threads run to the end."""

from __future__ import annotations

import abc

from userlock.lock.store import LeaseStore, Stored
from userlock.waits import run


class WaitingStore(LeaseStore):
    """A store whose verbs are written as coroutines. It gives threads their blocking form."""

    waits = True

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> object | None:
        return run(self.acreate, lock_id, record, ttl_seconds)

    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        return run(self.aread, lock_id, hurry=hurry)

    def swap(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        return run(self.aswap, lock_id, version, record, ttl_seconds)

    def take_over(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        return run(self.atake_over, lock_id, version, record, ttl_seconds)

    def remove(self, lock_id: str, version: object) -> bool:
        return run(self.aremove, lock_id, version)

    def append(self, lock_id: str, line: bytes) -> Stored | None:
        return run(self.aappend, lock_id, line)

    def rewrite(self, lock_id: str, version: object, record: bytes) -> object | None:
        return run(self.arewrite, lock_id, version, record)

    def append_and_wake(self, lock_id: str, line: bytes) -> Stored | None:
        return run(self.aappend_and_wake, lock_id, line)

    def fence(self, lock_id: str, line: bytes) -> tuple[Stored, int] | None:
        return run(self.afence, lock_id, line)

    @abc.abstractmethod
    async def acreate(self, lock_id: str, record: bytes, ttl_seconds: float) -> object | None: ...

    @abc.abstractmethod
    async def aread(self, lock_id: str, *, hurry: bool = False) -> Stored | None: ...

    @abc.abstractmethod
    async def aswap(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None: ...

    @abc.abstractmethod
    async def aremove(self, lock_id: str, version: object) -> bool: ...

    @abc.abstractmethod
    async def aappend(self, lock_id: str, line: bytes) -> Stored | None: ...

    async def atake_over(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        return await self.aswap(lock_id, version, record, ttl_seconds)

    async def arewrite(self, lock_id: str, version: object, record: bytes) -> object | None:
        return None

    async def aappend_and_wake(self, lock_id: str, line: bytes) -> Stored | None:
        return await self.aappend(lock_id, line)

    async def afence(self, lock_id: str, line: bytes) -> tuple[Stored, int] | None:
        stored = await self.aappend(lock_id, line)
        if stored is None:
            return None
        assert isinstance(stored.version, int), "a store with other versions has numbers of its own"
        return stored, stored.version
