"""The locks that stay held while code waits for one more."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from userlock.lock.lease import Lease

if TYPE_CHECKING:
    from userlock.lock.scope import LockScope


class Holding(Iterable[Lease]):
    """The leases of one service that this thread holds, in a scope and those around it.

    A thread that shares a scope waits on its own; a task does not: the whole
    thread stands still while one of its tasks waits. The leases are listed
    only when the lock is contended.
    """

    def __init__(self, innermost: LockScope) -> None:
        service = innermost.service
        self._thread = threading.get_ident()
        self._scopes = []
        scope: LockScope | None = innermost
        while scope is not None:
            if scope._held and not scope.closed and scope.service is service:
                self._scopes.append(scope)
            scope = scope.outer

    def __iter__(self) -> Iterator[Lease]:
        for scope in self._scopes:
            for tenure in scope.held.values():
                if tenure.owner[0] == self._thread:
                    yield tenure.lease
