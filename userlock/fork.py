"""Reset objects in a forked child process.

A mutex that another thread holds at the moment of a fork stays locked in the child forever, and
the child must not use the parent's connections.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from types import MethodType

log = logging.getLogger(__name__)

_owners: weakref.WeakKeyDictionary[object, list[str]] = weakref.WeakKeyDictionary()
_functions: list[Callable[[], object]] = []


def reset_in_child(reset: Callable[[], object]) -> None:
    """Call `reset` in each forked child of this process, before any other code of the library.

    A bound method keeps its object by a weak reference only; the object must
    be hashable by identity. Functions are called after methods.
    """
    if isinstance(reset, MethodType):
        _owners.setdefault(reset.__self__, []).append(reset.__name__)
    else:
        _functions.append(reset)


def _run_in_child() -> None:
    of_objects = [getattr(owner, name) for owner, names in list(_owners.items()) for name in names]
    for reset in of_objects + _functions:
        try:
            reset()
        except Exception:  # the others' mutexes may be locked
            log.exception("the child of a fork could not reset %r", reset)


os.register_at_fork(after_in_child=_run_in_child)
