"""Call sites: the first frame that is not a library's.

An application that reads or puts through helpers of its own has them passed
over as well, and their callers named: a module that is one says

    _userlock_helper = True
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_OURS = str(Path(__file__).parent) + "/"
_NDB = "/google/cloud/ndb/"
#: The standard library calls what it was given: a thread pool, an event loop, a wrapper.
_STANDARD = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})
_INSTALLED = ("/site-packages/", "/dist-packages/")
#: Of a put that a test spies on, the call site is where the mock was called.
_MOCKS = "/pytest_mock/plugin.py"
_OF_A_STRING = "<string>"
_HELPER = "_userlock_helper"
#: Files that have been judged, by their names as code objects have them.
_passed_over: set[str] = set()
_application: set[str] = set()


def line_of(code: CodeType, instruction: int) -> int:
    """Return the line of an instruction, as a frame's `f_lasti` has it."""
    return next(
        (line for start, end, line in code.co_lines() if start <= instruction < end and line),
        code.co_firstlineno,
    )


class CallSite:
    """A line of code. Keeps no frame alive.

    An instruction, really: what line that is takes longer to find than to note
    it, and is asked of few.
    """

    __slots__ = ("_code", "_instruction")

    def __init__(self, code: CodeType, instruction: int) -> None:
        self._code = code
        self._instruction = instruction

    def is_of(self, code: CodeType, instruction: int) -> bool:
        """Return whether it is that instruction."""
        return self._code is code and self._instruction == instruction

    @property
    def line(self) -> int:
        return line_of(self._code, self._instruction)

    @property
    def file(self) -> str:
        return self._code.co_filename

    @property
    def function(self) -> str:
        return self._code.co_qualname

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"

    __repr__ = __str__


def here() -> CallSite | None:
    """Return the line of application code that is running. A microsecond or two."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in _passed_over and (
            file in _application or not _is_internal(file, frame.f_globals)
        ):
            return _call_site(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None


#: Of the last one: what a loop writes has one call site.
_last: CallSite | None = None


def _call_site(code: CodeType, instruction: int) -> CallSite:
    global _last
    last = _last
    if last is None or not last.is_of(code, instruction):
        last = _last = CallSite(code, instruction)
    return last


def _is_internal(file: str, module: dict[str, Any]) -> bool:
    if file == _OF_A_STRING:  # made by a mock with `autospec`, or anything else
        return "_checksig_" in module
    internal = (
        file.startswith((_OURS, "<frozen "))
        or _NDB in file
        or (file.startswith(_STANDARD) and not any(part in file for part in _INSTALLED))
        or file.endswith(_MOCKS)
        or module.get(_HELPER) is True
    )
    (_passed_over if internal else _application).add(file)
    return internal
