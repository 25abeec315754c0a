"""The trees of a process: how they are deleted, and the files of their leaves."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.models import Leaf, Root
from userlock.deletion import Tree
from userlock.outbox import Outbox

#: The entities that are deleted in one transaction: few, so that processes die between two.
_BATCH = 5


class Garden:
    """The trees of a process, and the files of their leaves."""

    def __init__(self, outbox: Outbox, folder: Path) -> None:
        self._files = files_of(folder)
        self._files.mkdir(exist_ok=True)
        Tree(
            Root,
            outbox,
            children={Root: {Leaf: "above"}, Leaf: {Leaf: "above"}},
            assets={Leaf: lambda leaf: self._file(leaf.key.id()).unlink(missing_ok=True)},
            batch=_BATCH,
        )

    def add_file(self, leaf: str) -> None:
        """Store the file of a leaf, before the leaf."""
        self._file(leaf).touch()

    def _file(self, leaf: str) -> Path:
        return self._files / leaf


def files_of(folder: Path) -> Path:
    """Return the folder of all leaves' files."""
    return folder / "leaves"
