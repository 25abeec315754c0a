"""Stores that wait for a server: their verbs are coroutines, which threads run to the end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from userlock.lock.store import LeaseStore, Stored, numbered
from userlock.waits import run

_Verb = TypeVar("_Verb", bound=Callable[..., Any])


def _blocking(verb: _Verb) -> _Verb:
    """Return a verb that runs its coroutine, `acreate` for `create`, in the calling thread."""

    @functools.wraps(verb, updated=())  # not the mark of an abstract method
    def blocking(store: Any, *args: Any, **kwargs: Any) -> Any:
        return run(getattr(store, f"a{verb.__name__}"), *args, **kwargs)

    return cast(_Verb, blocking)


class WaitingStore(LeaseStore):
    """A store whose verbs are written as coroutines. It gives threads their blocking form."""

    create = _blocking(LeaseStore.create)
    read = _blocking(LeaseStore.read)
    swap = _blocking(LeaseStore.swap)
    take_over = _blocking(LeaseStore.take_over)
    remove = _blocking(LeaseStore.remove)
    append = _blocking(LeaseStore.append)
    append_and_wake = _blocking(LeaseStore.append_and_wake)
    fence = _blocking(LeaseStore.fence)

    async def atake_over(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        return await self.aswap(lock_id, version, record, ttl_seconds)

    async def aappend_and_wake(self, lock_id: str, line: bytes) -> Stored | None:
        return await self.aappend(lock_id, line)

    async def afence(self, lock_id: str, line: bytes) -> tuple[Stored, int] | None:
        stored = await self.aappend(lock_id, line)
        return None if stored is None else numbered(stored)
