"""The trees at the end: none half deleted, none deleted that was not to be, each title once.

A root that was accepted is stored, unless its deletion may have been committed. A leaf is stored if
its root is; otherwise it is gone, and so is its file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.chaos.findings import Finding, Kind
from tests.chaos.history import History
from tests.chaos.record import Outcome, StoredTrees


class Trees:
    """The trees of a run.

    Attributes:
        landed: the ids of the roots and leaves that are stored, or were deleted rightly.
        figures: amounts of checked data, by name.
    """

    def __init__(self, history: History, stored: StoredTrees) -> None:
        self._history = history
        self._stored = stored
        self._felled = {
            each.tree for each in history.fellings.values() if each.outcome is not Outcome.REFUSED
        }
        there = [*stored.roots, *stored.leaves]
        self._gone = {
            each
            for each, tree in history.planted.items()
            if tree in self._felled and tree not in stored.roots and each not in there
        }
        writes = history.writes
        self.landed = [
            *there,
            *(each for each in self._gone if writes[each].outcome is Outcome.ACCEPTED),
        ]
        self.figures = {
            "trees at the end": len(stored.roots),
            "leaves at the end": len(stored.leaves),
            "trees deleted": len(self._felled.difference(stored.roots)),
            "leaves deleted": sum(
                each != history.planted[each] and writes[each].outcome is Outcome.ACCEPTED
                for each in self._gone
            ),
            "copies of titles": sum("(Copy" in title for _, title in stored.titles),
            "writes refused for a title": sum(w.error == "NotUnique" for w in writes.values()),
        }

    def findings(self) -> Iterator[Finding]:
        """Yield the errors, except those that `writes` finds."""
        for leaf, tree in self._stored.leaves.items():
            if tree not in self._stored.roots:
                yield Finding(Kind.ORPHAN, leaf, f"its root {tree} is gone")
            if leaf not in self._stored.files:
                yield Finding(Kind.LOST, leaf, "its file")
        for each in self._gone & self._stored.files:
            if self._history.writes[each].outcome is Outcome.ACCEPTED:
                yield Finding(Kind.LEFT, each, "its file")
        for name, felling in self._history.fellings.items():
            if felling.outcome is not Outcome.ACCEPTED:
                continue
            if felling.tree in self._stored.roots:
                yield Finding(Kind.LOST, name, f"the deletion of {felling.tree}")
            if felling.forbidden:
                yield Finding(Kind.UNCHECKED, name, f"the deletion of {felling.tree}")
        for each in self._stored.unfinished:
            yield Finding(Kind.LEFT, each, "an unfinished deletion")
        for (user, title), number in Counter(self._stored.titles).items():
            if number > 1:
                yield Finding(Kind.TWICE, title, f"a title of {number} entities", user)
        for problem in self._stored.problems:
            yield Finding(Kind.CLAIM, problem, "claims and entities disagree")
