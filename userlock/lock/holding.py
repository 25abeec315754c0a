"""The locks that stay held while code waits for one more.

Asked for each lock that is taken inside another one, of which there may be
thousands. So not all of them are looked at each time:

    held    a ──▶ b ──▶ c ──▶ d      taken in this order, one inside the other
    wanted  e                        d → e says it of all: ways lead to d from each
                                     d remembers the highest of them: e is above it

What was taken without waiting (`wait_timeout=0`) is left out of the order
graph, and looked past.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from userlock.errors import LockOutOfOrder
from userlock.events import OutOfOrder
from userlock.lock.lease import Lease
from userlock.lock.order import Taken
from userlock.lock.tenure import Tenure
from userlock.settings import Reaction

if TYPE_CHECKING:
    from userlock.lock.scope import LockScope


class Holding(Iterable[Lease]):
    """The leases of one service that this thread holds, in a scope and those around it.

    A thread that shares a scope waits on its own; a task does not: the whole
    thread stands still while one of its tasks waits. The leases are listed
    when somebody looks at them; where nobody is in the way, nobody does.
    """

    def __init__(self, innermost: LockScope) -> None:
        self._service = service = innermost.service
        self._settings = innermost.settings
        self._thread = threading.get_ident()
        self._scopes = []
        scope: LockScope | None = innermost
        while scope is not None:
            if scope._held and not scope.closed and scope.service is service:
                self._scopes.append(scope)
            scope = scope.outer

    def __iter__(self) -> Iterator[Lease]:
        for scope in self._scopes:
            for tenure in filter(self._is_mine, scope.held.values()):
                yield tenure.lease

    def noting(self, lock_id: str, taken: Taken) -> Holding:
        """Return the same, after noting that this lock is about to be taken inside them.

        Raises:
            LockOutOfOrder: against the canonical order, where the settings say that it is raised.
        """
        latest: list[str] = []
        above: list[tuple[str, Taken]] = []
        for scope in self._scopes:
            with scope._mutex:
                latest += self._latest(scope)
                above += self._above(scope, lock_id)
        if latest:
            reaction = self._settings.lock_order
            reports = self._service.order.note(
                above, lock_id, taken, latest=latest, again=reaction is Reaction.RAISE
            )
            for report in reports if reaction is not Reaction.OFF else ():
                self._service.listeners.emit(report)
                if reaction is Reaction.RAISE:
                    raise _error_of(report)
        return self

    def _latest(self, scope: LockScope) -> Iterator[str]:
        """Return the locks that were taken last, back to those that the order graph knows."""
        for tenure in self._latest_first(scope):
            yield tenure.lock_id
            if tenure._in_order_graph:
                return

    def _above(self, scope: LockScope, lock_id: str) -> list[tuple[str, Taken]]:
        """Of each place where locks above this one were taken, the highest of them."""
        above = self._remembered_above(scope, lock_id)
        if not all(_is_held(scope, highest, place) for highest, place in above):
            # Left before those that were taken after it, which still remember it.
            for tenure in scope._held.values():
                tenure._highest = None
            above = self._remembered_above(scope, lock_id)
        return above

    def _remembered_above(self, scope: LockScope, lock_id: str) -> list[tuple[str, Taken]]:
        highest = self._highest(scope)
        return [(each, place) for place, each in highest.items() if each > lock_id]

    def _highest(self, scope: LockScope) -> Mapping[Taken, str]:
        """By place, the highest lock id. Each tenure remembers those before it."""
        unseen = []
        highest: Mapping[Taken, str] = {}
        for tenure in self._latest_first(scope):
            if tenure._highest is not None:
                highest = tenure._highest
                break
            unseen.append(tenure)
        for tenure in reversed(unseen):
            place = tenure.taken_by
            if tenure.lock_id > highest.get(place, ""):
                highest = {**highest, place: tenure.lock_id}
            tenure._highest = highest
        return highest

    def _latest_first(self, scope: LockScope) -> Iterator[Tenure]:
        return filter(self._is_mine, reversed(scope._held.values()))

    def _is_mine(self, tenure: Tenure) -> bool:
        return tenure.owner[0] == self._thread


def _error_of(report: OutOfOrder) -> LockOutOfOrder:
    return LockOutOfOrder(
        lock_id=report.lock_id or "",
        held_lock_id=report.held_lock_id,
        taken_at=report.taken_at,
        held_at=report.held_at,
        opposite_at=report.opposite_at,
    )


def _is_held(scope: LockScope, lock_id: str, place: Taken) -> bool:
    tenure = scope._held.get(lock_id)
    return tenure is not None and tenure.taken_by == place
