"""Types of ndb's query, for type checkers: ndb has none. Nothing here exists at run time.

`Query[User]` is the `ndb.Query` that `User.query()` returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Literal, Self, TypeVar, overload

from google.cloud import ndb

_Entity = TypeVar("_Entity")

class Results(Any, Iterator[_Entity]):
    """An iteration over a query, with the methods of `ndb.QueryIterator`."""

    def __next__(self) -> _Entity: ...

class Query(ndb.Query, Generic[_Entity]):
    """A query for entities of a model."""

    def filter(self, *filters: Any) -> Self: ...
    def order(self, *properties: Any) -> Self: ...
    @overload
    def iter(self, *, keys_only: Literal[True], **options: Any) -> Results[ndb.Key]: ...
    @overload
    def iter(self, **options: Any) -> Results[_Entity]: ...
    def __iter__(self) -> Results[_Entity]: ...
    def count(self, limit: int | None = None, **options: Any) -> int: ...
    @overload
    def fetch(
        self, limit: int | None = None, *, keys_only: Literal[True], **options: Any
    ) -> list[ndb.Key]: ...
    @overload
    def fetch(self, limit: int | None = None, **options: Any) -> list[_Entity]: ...
    @overload
    def get(self, *, keys_only: Literal[True], **options: Any) -> ndb.Key | None: ...
    @overload
    def get(self, **options: Any) -> _Entity | None: ...
    @overload
    def fetch_page(
        self, page_size: int, *, keys_only: Literal[True], **options: Any
    ) -> tuple[list[ndb.Key], Any, bool]: ...
    @overload
    def fetch_page(self, page_size: int, **options: Any) -> tuple[list[_Entity], Any, bool]: ...
