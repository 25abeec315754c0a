"""Further mutations of a commit: rows that change in the commit of their entity.

An entry of a model's `_unique` names the two objects (modules) that look after its
rows; `userlock.constraints` has them. The one knows the model, the other the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from userlock.ndb.commits import Looked, Name, Steps, Write


class Pair(NamedTuple):
    """A mutation, whose key is complete, and its write."""

    position: int
    mutation: Any
    write: Write


class RowChange(NamedTuple):
    """One change of a row.

    `version`: that which it replaces; 0 if there is none. `write_id`: recognises it.
    """

    mutation: Any
    version: int
    write_id: tuple[str, int]


class Further(Protocol):
    """The rows of a commit's mutations. Knows nothing of ndb."""

    def new_nonce(self) -> int:
        """Return a number for the rows of one commit, by which it is recognised."""

    def expected_keys(self, pairs: Iterable[Pair]) -> Iterable[Any]:
        """Return the (raw) keys to look up first."""

    def look_further(self, request: Any, pairs: Sequence[Pair], looked: Looked) -> Steps:
        """Look the keys up that only the first look-up tells."""

    def find_taken(self, pairs: Sequence[Pair], looked: Looked) -> Mapping[int, Any]:
        """Return the outcomes of the mutations that must not be committed, by position."""

    def changes(
        self, pairs: Sequence[Pair], looked: Looked, nonce: int
    ) -> Mapping[Name, RowChange]:
        """Return the changes of rows that belong to mutations of which none is refused."""

    def has_row_of(self, looked: Looked, pair: Pair, nonce: int) -> bool:
        """Return whether a commit with that nonce has given the mutation's entity a row."""


class RowsOfModel(Protocol):
    """The rows of a model's entities.

    Attributes:
        LIST: the property of an entity that lists its rows.
        further: looks after them in commits.
    """

    LIST: str
    further: Further

    def prepare(self, cls: Any, declared: Any, root: Any, of_root: Any) -> tuple[Any, ...]:
        """Check a class that is being defined, and give it what it needs.

        Raises:
            ConfigurationError: the declaration does not fit it.
        """

    def listed(self, entity: Any) -> tuple[Any, ...] | None:
        """Return the keys of the rows that an entity lists; None if they are not known."""

    def wanted(self, entity: Any) -> Sequence[Any]:
        """Return the rows that it needs by its present values. Calls code of the application."""

    def change(
        self, entity: Any, wanted: Sequence[Any], known: Sequence[Any] | None
    ) -> tuple[Any, tuple[Any, ...]]:
        """List the rows in an entity that is about to be put.

        Returns:
            The rows that the write changes, for `Further`, or None; and the keys of all.
        """

    def removal(self) -> Any:
        """Return the rows that a delete changes."""


def rows_of(declared: Any) -> Any:
    """Return what looks after the rows of a model; None if it declares nothing."""
    first = next(iter(declared), None) if isinstance(declared, list | tuple) else declared
    return None if first is None else getattr(first, "rows_of_model", None)
