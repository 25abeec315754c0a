"""Recognise test code, whose puts only arrange data.

A test puts an entity without a lock, over whatever exists, only to have it.
That is no mistake, and a thousand tests need not be changed for it. Puts of the
application, called by the same test, are checked: the call site of the put
decides.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path

#: The usual folders of test code, beside test modules and conftest.py files.
USUAL = ("tests", "test")


class TestCode:
    """Recognises test code by its file.

    Test code are test modules (files in which pytest has found a test function;
    doctests do not count), files named conftest.py, and the files listed.

    Args:
        root: the project's folder.
        listed: folders and files below the root; or patterns with `*`, for names from the root
            and for full names.
    """

    __test__ = False  # not a test, in spite of its name

    def __init__(self, root: Path, listed: Sequence[str]) -> None:
        self._root = root
        self._folders = [root / each for each in listed if "*" not in each]
        self._patterns = [each for each in listed if "*" in each]
        self._known: dict[str, bool] = {}

    def add_module(self, file: str) -> None:
        """Add a file in which tests have been found."""
        self._known[file] = True

    def __call__(self, file: str) -> bool:
        found = self._known.get(file)
        if found is None:
            found = self._known[file] = self._is_listed(Path(file))
        return found

    def _is_listed(self, path: Path) -> bool:
        if path.name == "conftest.py" or any(map(path.is_relative_to, self._folders)):
            return True
        names = [str(path)]
        if path.is_relative_to(self._root):
            names.append(str(path.relative_to(self._root)))
        return any(
            fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self._patterns
        )
