"""A lock service's functions for operators: holder, waiters, ending a lease."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from userlock.errors import LockServiceUnavailable
from userlock.events import Broken, Listeners
from userlock.lock.lease import Holder, check_lock_id, printable, process_label
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.record import Record, Waiter
from userlock.lock.store import StoreUnavailable
from userlock.lock.store_client import StoreClient

if TYPE_CHECKING:
    from userlock.lock.service import LockService


class ForOperators:
    """Looks at locks, and ends leases of others."""

    leases: LeaseProtocol
    listeners: Listeners
    fallback: LockService | None
    _access: StoreClient

    def break_lock(
        self, lock_id: str | int, *, by: str = "", token: str | None = None
    ) -> Holder | None:
        """End the lease of whoever has the lock now. For an operator, when a holder hangs.

        The holder finds out at its next heartbeat, extension or release; until
        then it goes on, and what it writes on outdated reads is refused at the
        commit. Whoever waits is next.

        While the store does not answer, the lease in the fallback store is
        ended, if somebody has one there. When the store answers again, its
        holder asks for the lock there as any other does, unless it has found
        out by then.

        Args:
            lock_id: the lock.
            by: who does it, for the log and for the holder; by default this process.
            token: end only the lease that has this one (`holder(lock_id).token`): of whoever the
                operator has seen. None: whoever has it now.

        Returns:
            Whose it was; None if nobody had it, or somebody else, or it changed hands at that
            very moment.

        Raises:
            LockServiceUnavailable: the store did not answer, and nobody is known to hold it.
        """
        lock_id = check_lock_id(lock_id)
        by = printable(by or process_label())
        service, record = self._look_here_or_there(lock_id)
        if record is None or record.free:
            return None
        if token is not None and record.holder.token != token:
            return None
        try:
            if not service._access.ask(lock_id, service.leases.break_, lock_id, record, by):
                return None
        except StoreUnavailable as trouble:
            raise LockServiceUnavailable(lock_id=lock_id, reason=trouble.reason) from trouble
        self.listeners.emit(Broken(lock_id, record.holder.describe(), by))
        return record.holder

    def holder(self, lock_id: str | int) -> Holder | None:
        """Return the holder of the lock, or None. While the store does not answer: that of the
        fallback store.

        Raises:
            LockServiceUnavailable: the store did not answer, and nobody is known to hold it.
        """
        _, record = self._look_here_or_there(lock_id)
        return None if record is None or record.free else record.holder

    def waiters(self, lock_id: str | int) -> list[Waiter]:
        """Return the waiters of the lock, in the order of service; as `holder`."""
        _, record = self._look_here_or_there(lock_id)
        return [] if record is None else record.waiters()

    def _look_here_or_there(self, lock_id: str | int) -> tuple[ForOperators, Record | None]:
        """Return the lock's record, and whose it is: this service's, or its fallback's."""
        try:
            return self, self.look(lock_id)
        except LockServiceUnavailable:
            with contextlib.suppress(LockServiceUnavailable):
                record = None if self.fallback is None else self.fallback.look(lock_id)
                # That nobody has it there says nothing of who has had it here since before.
                if self.fallback is not None and record is not None and not record.free:
                    return self.fallback, record
            raise

    def look(self, lock_id: str | int) -> Record | None:
        """Return the lock's record as it is now; None when there is none.

        Raises:
            LockServiceUnavailable: the store did not answer.
        """
        lock_id = check_lock_id(lock_id)
        try:
            return self._access.ask(lock_id, self.leases.look, lock_id)
        except StoreUnavailable as trouble:
            raise LockServiceUnavailable(lock_id=lock_id, reason=trouble.reason) from trouble
