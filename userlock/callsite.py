"""Find the call site of a read or a write: the innermost frame of application code.

Frames of this library, of ndb, of the standard library and of mocks do not
count. An application that reads or puts through a helper module of its own
can have the callers of that module reported instead. The helper says

    _userlock_helper = True
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

_OURS = str(Path(__file__).parent) + "/"
_NDB = "/google/cloud/ndb/"
#: The standard library calls application code: in a thread pool, an event loop, a wrapper.
_STANDARD = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})
_INSTALLED = ("/site-packages/", "/dist-packages/")
#: If a test spies on a put, the call site is the line that calls the mock.
_MOCKS = "/pytest_mock/plugin.py"
_OF_A_STRING = "<string>"
_HELPER = "_userlock_helper"
#: Files that have been classified, by the names in their code objects.
_internal: set[str] = set()
_application: set[str] = set()


class CallSite(NamedTuple):
    """A line of code. Keeps no frame alive."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def here() -> CallSite | None:
    """Return the line of application code that is running. Takes a microsecond or two."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        if file in _application or (
            file not in _internal and not _is_internal(file, frame.f_globals)
        ):
            return CallSite(file, frame.f_lineno, code.co_qualname)
        frame = frame.f_back
    return None


def raised_at(error: BaseException) -> CallSite | None:
    """Return the innermost line of application code through which an error went, else of any."""
    frames = list(traceback.walk_tb(error.__traceback__))
    of_app = [each for each in frames if is_application(each[0])]
    for frame, line in reversed(of_app or frames):
        return CallSite(frame.f_code.co_filename, line, frame.f_code.co_qualname)
    return None


def is_application(frame: FrameType) -> bool:
    """Return whether a frame is code of the application itself, which no package installed."""
    file = frame.f_code.co_filename
    internal = file in _internal or _is_internal(file, frame.f_globals)
    return not internal and not any(part in file for part in _INSTALLED)


def _is_internal(file: str, module: dict[str, Any]) -> bool:
    if file == _OF_A_STRING:  # a mock with `autospec`, or application code
        return "_checksig_" in module
    internal = (
        file.startswith((_OURS, "<frozen "))
        or _NDB in file
        or (file.startswith(_STANDARD) and not any(part in file for part in _INSTALLED))
        or file.endswith(_MOCKS)
        or module.get(_HELPER) is True
    )
    (_internal if internal else _application).add(file)
    return internal
