"""`transactional`: ndb's decorator, with types."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from google.cloud import ndb

from userlock.ndb import hooks as _hooks  # noqa: F401  (installs itself in ndb)

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


@overload
def transactional(
    function: Callable[_Parameters, _Result], /
) -> Callable[_Parameters, _Result]: ...
@overload
def transactional(
    *,
    retries: int = 3,
    read_only: bool = False,
    join: bool = True,
    xg: bool = True,
    propagation: int | None = None,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]: ...
def transactional(
    function: Callable[..., Any] | None = None,
    /,
    *,
    retries: int = 3,
    read_only: bool = False,
    join: bool = True,
    xg: bool = True,
    propagation: int | None = None,
) -> Any:
    """Run each call of a function in a transaction, as `ndb.transactional()`, with types.

        @userlock.transactional
        def spend(user_id: str, points: int) -> None: ...

        @userlock.transactional(retries=0)
        def spend_once(user_id: str, points: int) -> None: ...

    A call inside a transaction joins it. Put the lock around the call: ndb may run the
    function again, and a lock taken inside is held until the transaction is over.

    Args:
        function: what runs in the transaction; not a coroutine function or a generator, which
            would run after it.
        retries: how often ndb runs it again after a transient error.
        read_only: whether the transaction only reads.
        join: whether a call inside a transaction joins it; otherwise it raises
            `NotImplementedError`.
        xg: accepted as in ndb, which ignores it.
        propagation: an element of `ndb.TransactionOptions`, in place of `join`.

    Raises:
        TypeError: at the definition: the function would run after its transaction.
    """

    options = {
        "retries": retries,
        "read_only": read_only,
        "join": join,
        "xg": xg,
        "propagation": propagation,
    }

    def decorated(function: Callable[..., Any]) -> Any:
        if runs_later(function):
            raise TypeError(
                f"userlock.transactional takes no coroutine function or generator, as "
                f"{function.__qualname__} is one: it would run after its transaction. To fix it: "
                f"decorate a plain function, and call it from a coroutine by asyncio.to_thread"
            )
        return ndb.transactional(**options)(function)

    return decorated if function is None else decorated(function)


def runs_later(function: object) -> bool:
    """Return whether a call of a function only makes a coroutine or a generator."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(kind(function) for kind in kinds)
