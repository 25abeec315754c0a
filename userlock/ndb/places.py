"""Where in the code something happened: the first frame that is not ours or ndb's.

An application that reads or puts through helpers of its own has them passed
over as well, and their callers named: a module that is one says

    _userlock_helper = True
"""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from google.cloud import ndb

from userlock.lock.order import line_of

_INTERNAL_FOLDERS = tuple(
    str(Path(file).parent) + "/" for file in (ndb.__file__, str(Path(__file__).parent))
)
#: Of a put that a test spies on, the place is where the mock was called.
_MOCKS = (
    str(Path(contextlib.__file__).with_name("unittest") / "mock.py"),
    "/pytest_mock/plugin.py",
)
_OF_A_STRING = "<string>"
_INTERNAL_FILES = {contextlib.__file__, functools.__file__}
_HELPER = "_userlock_helper"
#: Files that have been judged, by their names as code objects have them.
_passed_over: set[str] = set()
_application: set[str] = set()


class Place:
    """A line of code. Keeps no frame alive.

    An instruction, really: what line that is takes longer to find than to note
    it, and is asked of few.
    """

    __slots__ = ("_code", "_instruction")

    def __init__(self, code: CodeType, instruction: int) -> None:
        self._code = code
        self._instruction = instruction

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


def here() -> Place | None:
    """The line of application code that is running. A microsecond or two."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in _passed_over and (
            file in _application or not _is_internal(file, frame.f_globals)
        ):
            return Place(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None


def _is_internal(file: str, module: dict[str, Any]) -> bool:
    if file == _OF_A_STRING:  # made by a mock with `autospec`, or anything else
        return "_checksig_" in module
    internal = (
        file.startswith(_INTERNAL_FOLDERS)
        or file in _INTERNAL_FILES
        or file.startswith("<frozen ")
        or file.endswith(_MOCKS)
        or module.get(_HELPER) is True
    )
    (_passed_over if internal else _application).add(file)
    return internal
