"""One put or delete while it is being begun: from the call to the message."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any, NamedTuple

from userlock.callsite import CallSite
from userlock.ndb.context import current_context
from userlock.ndb.fencing import Ticket
from userlock.ndb.transactions import wait_for_all
from userlock.ndb.wire import TicketedKey, ticketed


class Writing:
    """One put or delete that is being begun: where its ticket is until the message is made.

    In a context variable, and only for as long as the call that begins it: what
    it calls may begin other writes, of the same object too, each in its own.
    """

    __slots__ = ("at", "context", "entity", "sent", "ticket")

    def __init__(self, entity: Any, at: CallSite | None, context: Any) -> None:
        self.entity = entity
        self.at = at
        self.context = context
        self.ticket: Ticket | None = None
        self.sent = False

    def begin(self, begin: Callable[[], Any]) -> Any:
        """Begin the write. Returns its future."""
        around, group = _writing.get(), _group.get()
        token = _writing.set(self)
        try:
            future = begin()
        except BaseException:
            if self.ticket is not None:
                self.ticket.withdraw()
            raise
        finally:
            _writing.reset(token)
        if self.ticket is not None:
            self.ticket.begun(future)
            if group is not None and group.around is around:  # not what runs meanwhile
                group.tickets.append(self.ticket)
        return future


_writing: contextvars.ContextVar[Writing | None] = contextvars.ContextVar(
    "userlock_writing", default=None
)


class _Group(NamedTuple):
    """The tickets of one `put_multi` or `delete_multi`, and the write that it is begun in."""

    tickets: list[Ticket]
    around: Writing | None


_group: contextvars.ContextVar[_Group | None] = contextvars.ContextVar(
    "userlock_group", default=None
)


def writing() -> Writing | None:
    """Return the write that is being begun here, if one is."""
    return _writing.get()


def ticketed_key(ds_key: Any) -> Any:
    """Return the key that the message of the write that is being begun is made with."""
    current = _writing.get()
    if current is None or current.ticket is None or current.sent:
        return ds_key
    if not current.ticket.has(ds_key):
        return ds_key
    current.sent = True
    return ticketed(ds_key, current.ticket.number)


def plain_key(ds_key: Any) -> Any:
    """Return a key without its ticket."""
    return ds_key.plain if type(ds_key) is TicketedKey else ds_key


def together(begin: Callable[[], list[Any]]) -> list[Any]:
    """Begin several writes: all, or none if one of them is refused."""
    context = current_context()
    if context is not None and context.transaction is None:
        wait_for_all(context)  # or one that has to wait would send those before it
    group = _Group([], _writing.get())
    token = _group.set(group)
    try:
        return begin()
    except Exception:
        for ticket in group.tickets:
            ticket.withdraw()
        raise
    finally:
        _group.reset(token)
