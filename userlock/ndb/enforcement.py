"""The reaction to a violation: raised, logged, or switched off.

A `suppress` block belongs to a frame. It holds for calls from that frame while it is open:

    tasklet A                        tasklet B
    with suppress("…"):
        yield key.get_async() ─────▶ entity.put()    checked: A's frame did not call it
        entity.put()                 (not checked: called from A's frame)

A tasklet that begins in a block inherits it while it is open. Code run by an
event loop does not inherit the blocks of the code that drives the loop.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar, cast

from userlock.callsite import CallSite, here
from userlock.errors import WriteViolation
from userlock.lock.configuration import defaults
from userlock.lock.scope import current_scope
from userlock.ndb import patches
from userlock.ndb.provenance import NO_LOCKS
from userlock.reports import REPORTS
from userlock.settings import Enforcement, Settings

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Functions that open a block for their caller.
_ENTERING = ("__enter__", "__aenter__", "enter_context", "enter_async_context")


class _Block:
    """An open `suppress` block. Only the code that opened it keeps it alive."""

    __slots__ = ("__weakref__", "frame", "opened_by")

    def __init__(self, opened_by: FrameType, frame: FrameType) -> None:
        self.opened_by: FrameType | None = opened_by
        #: The frame that it belongs to; None once it is closed.
        self.frame: FrameType | None = frame


_numbers = itertools.count()
_open: weakref.WeakValueDictionary[int, _Block] = weakref.WeakValueDictionary()
_tasklet_of: Callable[[FrameType], Any] | None = None


class suppress:  # noqa: N801 (a statement, as `contextlib.suppress`)
    """Check nothing inside the block. Writes are still fenced.

        with userlock.suppress("the import job owns these entities"):
            ndb.put_multi(entities)

    It also decorates functions, generator functions and coroutine functions;
    below `@ndb.tasklet`, not above it.

    A block holds for the code that opens it and for all that this code calls,
    including tasklets that begin in the block. It does not hold for other
    tasklets, for other threads, or for a caller while a generator with a block
    is suspended. A context manager that opens one holds it for the `with`
    statement of its caller.

    Args:
        reason: the justification, for the next reader of the code.

    Raises:
        ValueError: no reason is given.
        TypeError: the decorated function's code runs after its call has returned.
    """

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError("suppress() needs a reason: say why writing without the lock is right")
        self._reason = reason
        self._blocks: list[_Block] = []

    def __enter__(self) -> None:
        opened_by = sys._getframe(1)
        self._enter(opened_by, _owner(opened_by))

    def _enter(self, opened_by: FrameType, owner: FrameType) -> None:
        global _tasklet_of
        if _tasklet_of is None:
            _tasklet_of = patches.watch_tasklets(_blocks_here)
        block = _Block(opened_by, owner)
        self._blocks.append(block)
        _open[next(_numbers)] = block

    def __exit__(self, *_: object) -> None:
        # One object may be entered by several tasklets, and left in any order.
        left_by = sys._getframe(1)
        around: FrameType | None = left_by
        while around is not None and around.f_code.co_filename == contextlib.__file__:
            around = around.f_back  # past an exit stack
        mine = [block for block in self._blocks if block.opened_by is left_by]
        mine = mine or [block for block in self._blocks if block.frame is around]
        block = (mine or self._blocks)[-1]
        self._blocks.remove(block)
        block.opened_by = block.frame = None

    def __call__(self, function: _Function) -> _Function:
        reason = self._reason
        decorated: Any = function
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"@suppress takes a function, not {function!r:.200}")
        name = getattr(function, "__qualname__", repr(function))
        if inspect.isasyncgenfunction(function):
            raise TypeError(
                f"@suppress cannot decorate the async generator {name}. To fix it: use "
                f"`with userlock.suppress(reason):` around its writes"
            )

        async def run_coroutine(*args: Any, **kwargs: Any) -> Any:
            with suppress(reason):
                return await decorated(*args, **kwargs)

        def run_generator(*args: Any, **kwargs: Any) -> Any:
            block = suppress(reason)
            frame = sys._getframe()
            block._enter(frame, frame)  # its own, even if it is a context manager
            try:
                result = yield from decorated(*args, **kwargs)
            finally:
                block.__exit__()
            return result

        def run(*args: Any, **kwargs: Any) -> Any:
            with suppress(reason):
                return decorated(*args, **kwargs)

        wrapper: Any = run
        if inspect.iscoroutinefunction(function):
            wrapper = run_coroutine
        elif inspect.isgeneratorfunction(function):
            wrapper = run_generator
        elif any(
            runs_later(inspect.unwrap(function))
            for runs_later in (
                inspect.isgeneratorfunction,
                inspect.iscoroutinefunction,
                inspect.isasyncgenfunction,
            )
        ):
            raise TypeError(
                f"@suppress cannot decorate {name}: its code runs after the call has returned. To "
                f"fix it: put @suppress below the other decorator (@ndb.tasklet, @contextmanager), "
                f"next to the function"
            )
        return cast(_Function, functools.wraps(decorated)(wrapper))


def _owner(frame: FrameType) -> FrameType:
    """Return the frame that a block belongs to: that of the `with` statement."""
    while frame.f_back is not None:
        caller = frame.f_back
        if frame.f_code.co_name in _ENTERING:
            frame = caller
        elif (
            frame.f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR)
            and caller.f_code.co_name in _ENTERING
            and caller.f_code.co_filename == contextlib.__file__
        ):
            frame = caller  # the generator is a context manager
        else:
            break
    return frame


def _open_blocks() -> list[_Block]:
    """Return all open blocks of the process."""
    blocks = [reference() for reference in _open.valuerefs()]
    return [block for block in blocks if block is not None and block.frame is not None]


def _blocks_here() -> tuple[_Block, ...]:
    """Return the open blocks that hold for the running code."""
    blocks = _open_blocks()
    if not blocks or _tasklet_of is None:
        return ()
    found: list[_Block] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found += [block for block in blocks if block.frame is frame]
        inherited = _tasklet_of(frame)
        if inherited is not None:
            found += [block for block in inherited if block.frame is not None]
            break
        frame = frame.f_back
    return tuple(found)


def suppressed() -> bool:
    """Return whether the running code is in a `suppress` block."""
    return bool(_open) and bool(_blocks_here())


def current_settings() -> Settings:
    """Return the settings of the current scope, or the process's defaults."""
    scope = current_scope()
    return defaults.settings if scope is None else scope.settings


def place_of_read() -> CallSite | None:
    """Return the application's call site, if the places of reads are captured."""
    return here() if current_settings().capture_places else None


class Moment:
    """The call site, ndb context, locks, transaction and settings at the start of a write."""

    __slots__ = ("at", "checked", "context", "fenced", "held", "settings", "transaction")

    def __init__(self, at: CallSite | None, context: Any) -> None:
        scope = current_scope()
        self.at = at
        self.context = context
        self.held = NO_LOCKS if scope is None else scope.held
        self.settings = defaults.settings if scope is None else scope.settings
        self.transaction: bytes | None = context.transaction
        arranges = REPORTS.arranges(at)
        self.fenced = self.settings.fencing and not arranges
        self.checked = (
            self.settings.enforcement is not Enforcement.OFF
            and REPORTS.checks
            and not arranges
            and not suppressed()
        )

    @property
    def raises(self) -> bool:
        """Return whether violations are raised, not only logged."""
        return self.settings.enforcement is Enforcement.RAISE


def report(violation: WriteViolation) -> None:
    """Raise the violation, or log it, as the settings say."""
    if REPORTS.report(violation, enforced=current_settings().enforcement is Enforcement.RAISE):
        raise violation
