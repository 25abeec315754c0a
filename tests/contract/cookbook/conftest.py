"""The code of a page of the cookbook, with locks in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock.outbox
from tests.contract.outbox.conftest import Died, Mailbox
from tests.documents import Block
from userlock.constraints.claims import ClaimRow
from userlock.deletion import tree as tree_module
from userlock.deletion.tree import DeletionRow
from userlock.idempotency.rows import RequestRow
from userlock.ndb import commits
from userlock.outbox import outbox as outbox_module
from userlock.outbox.rows import JobRow, NameRow, RelayRow
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

#: The library's kinds: a page may not forget them.
KINDS = (ClaimRow, DeletionRow, JobRow, NameRow, RelayRow, RequestRow)
#: Runs a block of a page, in an ndb context.
Cook = Callable[[Block], dict[str, Any]]


@pytest.fixture
def cook(ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cook]:
    kinds = {each._get_kind(): each for each in KINDS}
    monkeypatch.setattr(ndb.Model, "_kind_map", {**ndb.Model._kind_map, **kinds})
    monkeypatch.setattr(tree_module, "_trees", {})  # kinds of other pages have the same names
    monkeypatch.setattr(ndb._retry, "_DEFAULT_INITIAL_DELAY", 0.001)
    monkeypatch.setattr(ndb._retry, "_DEFAULT_MAXIMUM_DELAY", 0.001)
    monkeypatch.setattr(commits, "RESEND_DELAYS", (0.001,) * 3)
    service = userlock.LockService(MemoryStore())
    userlock.configure(service=service)
    monkeypatch.setattr(userlock.LockService, "from_url", staticmethod(lambda *_, **__: service))
    with ndb_client.context(cache_policy=False):
        yield lambda block: block.run({"__name__": "cookbook"})


@contextlib.contextmanager
def ending(
    where: Any, name: str, *, after: bool = False, error: type[BaseException] = Died
) -> Iterator[None]:
    """Let the process end in the block: before or after a function, of an object or of a page.

    In a transaction, raise an `Exception` instead: ndb does not end it after another one.
    """
    names = where if isinstance(where, dict) else None
    plain = getattr(where, name) if names is None else names[name]

    def ends(*args: Any, **kwargs: Any) -> None:
        if after:
            plain(*args, **kwargs)
        raise error

    with pytest.MonkeyPatch.context() as patch:
        if names is None:
            patch.setattr(where, name, ends)
        else:
            patch.setitem(names, name, ends)
        with pytest.raises(error):
            yield


#: A process that ends before, or after a step.
BEFORE_AND_AFTER = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


class ByHand:
    """Time by hand, and engines that keep their messages, for the outboxes of a page.

    Attributes:
        clock: of the outbox.
        lanes: the engines by URL.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.lanes: dict[str, Mailbox] = {}

    def open_engine(self, url: str) -> Mailbox:
        return self.lanes.setdefault(url, Mailbox())

    def deliver_all(self) -> None:
        """Deliver the messages of all engines, those that come meanwhile too."""
        while any(lane.deliver_all() for lane in self.lanes.values()):
            pass


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> ByHand:
    """Let the outboxes that pages make from now on go by hand."""
    by_hand = ByHand(clock)
    monkeypatch.setattr(outbox_module, "open_engine", by_hand.open_engine)
    defaults = userlock.outbox.Outbox.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "clock", clock)
    return by_hand
