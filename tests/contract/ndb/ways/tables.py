"""Ways in and ways out, and the lists that register them."""

from __future__ import annotations

import contextvars
import enum
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from google.cloud import ndb

from tests.contract.ndb.ways.models import Person
from userlock.testing import allow_unlocked

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Gives(enum.Enum):
    """The result of a read, as far as the rule is concerned."""

    WHOLE = "the entity"
    CREATED = "the entity that it creates"
    UNLOCKED = "the entity, read under no lock"
    PARTIAL = "part of the entity"
    NEW = "a new object"


def _one(user: str) -> list[Any]:
    return [Person(id=user, name=user)]


@dataclass(frozen=True)
class WayIn:
    """One way in which an entity object comes to be.

    Attributes:
        read: gives the object of a user, or a future of it, or a list with either.
        gives: the kind of its result.
        model: its class.
        covers: the public names of ndb that it tries out.
        arrange: stores the entities before.
        prepare: changes the user's entities before, without any lock.
        is_async: whether `read` returns a future.
        sent_at_once: whether the RPC is on its way to Datastore when `read` returns, and
            not when the code waits for an answer.
        outside: whether it reads outside of the transaction it is called in.
        around: a context manager around all of it.
    """

    name: str
    read: Callable[[str], Any]
    gives: Gives = Gives.WHOLE
    model: Any = Person
    covers: tuple[str, ...] = ()
    arrange: Callable[[str], list[Any]] = _one
    prepare: Callable[[str], object] | None = None
    is_async: bool = False
    sent_at_once: bool = False
    outside: bool = False
    around: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True)
class WayOut:
    """One way in which an entity object goes back, or its entity away.

    Attributes:
        write: writes it; may give a future, or a list with one, that is to be waited for.
        deletes: whether it deletes the entity.
        holds_nothing: whether it always writes without the lock.
        covers: the public names of ndb that it tries out.
        outside: whether it writes outside of the transaction it is called in.
    """

    name: str
    write: Callable[[Any], Any]
    deletes: bool = False
    holds_nothing: bool = False
    covers: tuple[str, ...] = ()
    outside: bool = False


WAYS_IN: list[WayIn] = []
WAYS_OUT: list[WayOut] = []


def way_in(name: str, *covers: str, **kind: Any) -> Callable[[_Function], _Function]:
    """Put a function on the list of the ways in."""

    def register(read: _Function) -> _Function:
        WAYS_IN.append(WayIn(name, read, covers=covers, **kind))
        return read

    return register


def way_out(name: str, *covers: str, **kind: Any) -> Callable[[_Function], _Function]:
    """Put a function on the list of the ways out."""

    def register(write: _Function) -> _Function:
        WAYS_OUT.append(WayOut(name, write, covers=covers, **kind))
        return write

    return register


def ready(asked: Any) -> Any:
    """Return the object itself, of a future, or of a list with one."""
    if isinstance(asked, ndb.Future):
        asked = asked.get_result()
    if isinstance(asked, (list, tuple)):
        return ready(asked[0])
    return asked


def in_thread(action: Callable[[], _T], *, with_our_context: bool = False) -> _T:
    """Run it in a thread: as another request would, or with a copy of our context variables."""
    client = ndb.get_context().client
    context = contextvars.copy_context()
    results: list[_T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            if with_our_context:
                results.append(context.run(action))
            else:
                with client.context():
                    results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def by_somebody_else(action: Callable[[], object]) -> None:
    """Do it as another request, by mistake without the lock."""

    def unchecked() -> None:
        with allow_unlocked("somebody else's mistake"):
            action()

    in_thread(unchecked)
