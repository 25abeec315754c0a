"""Detection of test code, whose puts only arrange data.

A test puts an entity so that there is one, without a lock, and over whatever
is there. That is no mistake, and a thousand tests need not be changed for it.
What the application puts, called by the same test, is checked as ever: what
counts is the place of the put.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path

#: Where test code is, beside test modules and conftest.py files, unless it is said otherwise.
USUAL = ("tests", "test")


class TestCode:
    """Tells test code by its file.

    Test modules (those in which pytest has found a test function; doctests do
    not count), files named conftest.py, and whatever is listed.

    Args:
        root: the project's folder.
        listed: folders and files, from there; or patterns with `*`, for names from there and
            for whole ones.
    """

    __test__ = False  # not a test, whatever its name begins with

    def __init__(self, root: Path, listed: Sequence[str]) -> None:
        self._root = root
        self._folders = [root / each for each in listed if "*" not in each]
        self._patterns = [each for each in listed if "*" in each]
        self._modules: set[str] = set()
        self._known: dict[str, bool] = {}

    def add_module(self, file: str) -> None:
        """Tests have been found in that file."""
        self._modules.add(file)

    def __call__(self, file: str) -> bool:
        if file in self._modules:
            return True
        found = self._known.get(file)
        if found is None:
            found = self._known[file] = self._is_listed(Path(file))
        return found

    def _is_listed(self, path: Path) -> bool:
        if path.name == "conftest.py":
            return True
        if any(path.is_relative_to(folder) for folder in self._folders):
            return True
        names = [str(path)]
        if path.is_relative_to(self._root):
            names.append(str(path.relative_to(self._root)))
        return any(
            fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self._patterns
        )
