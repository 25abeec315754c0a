"""Parts that the statements share: entries of a block, and decoration."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, ParamSpec, TypeVar

from userlock.lock.held_lock import running_code

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")


class Entries(Generic[_T]):
    """The entries of a context manager that can be entered many times, by thread and task."""

    __slots__ = ("_inside",)

    def __init__(self) -> None:
        # Each thread and task changes its own list only.
        self._inside: dict[tuple[int, int], list[_T]] = {}

    def push(self, me: tuple[int, int], entry: _T) -> None:
        """This thread and task (`running_code()`) has entered."""
        mine = self._inside.get(me)
        if mine is None:
            self._inside[me] = [entry]
        else:
            mine.append(entry)

    def pop(self) -> _T:
        """The latest entry of this thread and task, or of the one that a generator came from."""
        me = running_code()
        mine = self._inside.get(me)
        if mine is None:
            me, mine = next(iter(self._inside.items()))
        entry = mine.pop()
        if not mine:
            del self._inside[me]
        return entry


def decorated(
    context: AbstractContextManager[object], function: Callable[_P, _R]
) -> Callable[_P, _R]:
    """`function`, each call of it inside `context`.

    Raises:
        TypeError: at once, or at the call, for what would run after the block is left.
    """
    if (
        inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise _not_while_locked(context, function)

    @functools.wraps(function)
    def locked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with context:
            result = function(*args, **kwargs)
            if _is_still_to_run(result):
                raise _not_while_locked(context, function)
            return result

    return locked


def _is_still_to_run(result: object) -> bool:
    """Return whether a result is code that would run later, without the lock."""
    if inspect.isgenerator(result) or inspect.iscoroutine(result) or inspect.isasyncgen(result):
        return True
    done = getattr(result, "done", None)  # a future, of ndb or of anybody
    return callable(done) and callable(getattr(result, "result", None)) and not done()


def _not_while_locked(context: object, function: Callable[..., object]) -> TypeError:
    statement = type(context).__name__
    return TypeError(
        f"{statement} cannot decorate {getattr(function, '__qualname__', function)}: what it "
        f"returns would run after the lock is released (a generator, coroutine, tasklet or "
        f"future). Use `with userlock.{statement}(…):` inside it"
    )
