"""One put or delete while it begins: from the call to the message."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from userlock.callsite import CallSite
from userlock.errors import UserLockError
from userlock.lock.scope import current_scope
from userlock.ndb.context import current_context, request_notes
from userlock.ndb.fencing import Ticket
from userlock.ndb.pending import note_failure, wait_for_all
from userlock.ndb.wire import TicketedKey, ticketed


class Writing:
    """A put or delete that begins: keeps its ticket until the message is made.

    It is in a context variable during the call that begins it. That call may begin other
    writes, even of the same object, each with a `Writing` of its own.

    Args:
        entity: the object that is put; None for a delete.
        make: for a delete, makes the ticket when the key is about to be sent.
        inserts: whether the entity must be new, whatever its class says.
    """

    def __init__(
        self,
        entity: Any,
        at: CallSite | None,
        context: Any,
        make: Callable[[], Ticket] | None = None,
        *,
        inserts: bool = False,
    ) -> None:
        self.entity = entity
        self.at = at
        self.context = context
        self.inserts = inserts
        self.ticket: Ticket | None = None
        self._make = make
        self._error: Exception | None = None
        self._sent = False

    def ticket_for(self, ds_key: Any) -> Ticket | None:
        """Return its ticket, once, if that is its key."""
        make, self._make = self._make, None
        if make is not None:
            try:
                self.ticket = make()
            except Exception as error:
                self._error = error
                raise
        if self.ticket is None or self._sent or not self.ticket.has(ds_key):
            return None
        self._sent = True
        return self.ticket

    def begin(self, begin: Callable[[], Any]) -> Any:
        """Begin the write. Returns its future."""
        around, group = _writing.get(), _group.get()
        token = _writing.set(self)
        try:
            future = begin()
            if self._error is not None:  # in the future alone, nobody might see it
                raise self._error
            if self.ticket is not None:
                self.ticket.begun(future)
                if group is not None and group.around is around:  # not a write within one of them
                    group.tickets.append(self.ticket)
        except BaseException as error:
            if self.ticket is not None:
                self.ticket.withdraw()
            if isinstance(error, UserLockError):
                scope = current_scope()
                tenures = () if scope is None else scope.held.values()
                note_failure(error, getattr(error, "key", None), tenures, request_notes())
            raise
        finally:
            _writing.reset(token)
        return future


class _Group(NamedTuple):
    """The tickets of one `put_multi` or `delete_multi`, and the write that it begins in."""

    tickets: list[Ticket]
    around: Writing | None


_writing: contextvars.ContextVar[Writing | None] = contextvars.ContextVar(
    "userlock_writing", default=None
)
_group: contextvars.ContextVar[_Group | None] = contextvars.ContextVar(
    "userlock_group", default=None
)


def writing() -> Writing | None:
    """Return the write that begins here, if there is one."""
    return _writing.get()


def ticketed_key(ds_key: Any) -> Any:
    """Return the key for the message of the write that begins here."""
    current = _writing.get()
    ticket = None if current is None else current.ticket_for(ds_key)
    return ds_key if ticket is None else ticketed(ds_key, ticket.number)


def plain_key(ds_key: Any) -> Any:
    """Return a key without its ticket."""
    return ds_key.plain if type(ds_key) is TicketedKey else ds_key


def together(begin_all: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return what begins several writes: all, or none if one of them is refused."""
    return lambda *args, **kwargs: _begin(functools.partial(begin_all, *args, **kwargs))


def _begin(begin_all: Callable[[], list[Any]]) -> list[Any]:
    context = current_context()
    if context is not None and context.transaction is None:
        wait_for_all(context)  # a write that has to wait would send those before it
    group = _Group([], _writing.get())
    token = _group.set(group)
    try:
        return begin_all()
    except Exception:
        for ticket in reversed(group.tickets):
            ticket.withdraw()
        raise
    finally:
        _group.reset(token)


def results_of(futures: list[Any]) -> list[Any]:
    """Wait for writes that were begun together. The first error stands for all of them."""
    try:
        return [future.result() for future in futures]
    except Exception as first:
        for future in futures:
            if future.done():
                error = future.exception()
                if error is not None and error is not first:
                    first.add_note(f"Another write of this call failed as well: {error}")
        raise
