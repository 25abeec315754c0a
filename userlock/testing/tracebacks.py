"""Hide frames of this library and of ndb in the traceback of a test that fails by its error.

The last line shown is then the application's. `pytest --full-trace` shows all frames.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from userlock.errors import UserLockError

_HIDDEN = ("userlock.", "google.cloud.ndb.")
#: The suites for stores and engines are tests.
_SHOWN = ("userlock.testing.contract",)


def _is_our_error(excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
    """Return whether an error is one of the library's. Other errors may be its bugs."""
    return isinstance(excinfo.value, UserLockError)


@contextlib.contextmanager
def hidden_frames() -> Iterator[None]:
    """Hide them while pytest renders a traceback. It looks for a global variable of each frame."""
    hidden = [module for name, module in list(sys.modules.items()) if _is_hidden(name, module)]
    for module in hidden:
        vars(module)["__tracebackhide__"] = _is_our_error
    try:
        yield
    finally:
        for module in hidden:
            del vars(module)["__tracebackhide__"]


def _is_hidden(name: str, module: ModuleType | None) -> bool:
    return (
        name.startswith(_HIDDEN)
        and not name.startswith(_SHOWN)
        and isinstance(module, ModuleType)
        and "__tracebackhide__" not in vars(module)
    )
