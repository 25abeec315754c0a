"""Shelves with books: the oldest ones on the shelf are under quota. Jobs when a test says so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.outbox.conftest import Mailbox
from userlock.constraints import Quota, Unique
from userlock.ndb import capabilities
from userlock.outbox import Outbox, Retry
from userlock.testing import ManualClock


class Reader(userlock.UserModel):
    """An owner of books, with a plan."""

    _lock_id_from_key = userlock.key_id
    limit = ndb.IntegerProperty(default=2)


class Book(userlock.UserModel):
    """Counts while it is on the shelf."""

    _lock_id_from_key = userlock.root_id
    _unique = (Unique("isbn"),)
    isbn = ndb.StringProperty()
    order = ndb.IntegerProperty(required=True)
    on_shelf = ndb.BooleanProperty(default=True)
    over_quota = ndb.BooleanProperty(default=False)
    scan = ndb.BlobProperty()


class Shelves:
    """An app: books of readers, with a quota.

    Attributes:
        quota: of the books.
        outbox: its jobs.
        mailbox: the messages that wait.
    """

    def __init__(self, client: ndb.Client, mailbox: Mailbox, clock: ManualClock) -> None:
        self.mailbox = mailbox
        self.clock = clock
        self.outbox = Outbox(
            mailbox,
            client=client,
            clock=clock,
            retry=Retry(attempts=5, first_seconds=10, jitter=0),
        )
        self.quota = Quota("books", self.outbox, limit=self.limit, select=self.select, clock=clock)

    @staticmethod
    def limit(owner: str) -> int | None:
        reader = Reader.get_by_id(owner, use_cache=False)
        return 2 if reader is None else reader.limit

    @staticmethod
    def select(owner: str) -> list[Any]:
        query = Book.query(ancestor=ndb.Key(Reader, owner))
        books = query.fetch(use_cache=False, use_global_cache=False)
        return sorted((each for each in books if each.on_shelf), key=lambda book: book.order)

    def change(self, owner: str, number: int, what: str) -> None:
        """Change a book, or the plan, and stamp: one transaction under the lock."""

        def change() -> None:
            key = ndb.Key(Reader, owner, Book, number + 1)
            book = key.get()
            if what == "create" and book is None:
                Book(key=key, order=number).put()
            elif what == "delete" and book is not None:
                key.delete()
            elif what in ("remove", "return") and book is not None:
                book.on_shelf = what == "return"
                if book.on_shelf:
                    book.over_quota = False
                book.put()
            elif what.startswith("plan"):
                limit = {"none": None, "one": 1, "two": 2, "zero": 0}[what.partition(" ")[2]]
                reader = Reader.get_by_id(owner) or Reader(id=owner)
                reader.limit = limit
                reader.put()
            self.quota.stamp(owner)

        with userlock.global_lock(owner):
            ndb.transaction(change)

    def run_jobs(self) -> None:
        """Deliver all messages, and what the relay finds."""
        self.mailbox.deliver_all()

    def relay(self) -> None:
        self.clock.advance(120)
        self.outbox.relay()
        self.mailbox.deliver_all()

    def flags(self, owner: str) -> dict[int, bool]:
        """Return the flags of the books that count."""
        return {book.order: book.over_quota for book in self.select(owner)}

    def right_flags(self, owner: str) -> dict[int, bool]:
        limit = self.limit(owner)
        numbers = [book.order for book in self.select(owner)]
        return {n: limit is not None and place >= limit for place, n in enumerate(numbers)}


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def shelves(
    ndb_client: ndb.Client,
    mailbox: Mailbox,
    clock: ManualClock,
    service: userlock.LockService,
    quick_retries: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shelves]:
    """Provide the app, as the module `shelves_app`, in an ndb context."""
    shelves = Shelves(ndb_client, mailbox, clock)
    monkeypatch.setitem(sys.modules, "shelves_app", SimpleNamespace(quota=shelves.quota))
    with ndb_client.context(cache_policy=False):
        capabilities.honours_base_version(ndb_client)
        yield shelves
    shelves.outbox.close()
