"""An interrupt in the middle of a reply: the connection is out of step and must not be used again.

us                               memcached
ms k … ME ─────────────────────▶ HD c1           k is ours
(KeyboardInterrupt before the reply was read)
ms k … ME ─────────────────────▶ NS              k is held
reads "HD c1": granted, it seems
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.faults.kinds import KINDS, PATIENT, kind_of
from tests.waiting import wait_until
from userlock.lock.store import LeaseStore
from userlock.stores import stream
from userlock.stores.pool import Pool
from userlock.stores.stream import Stream


def interrupted(store: LeaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a record; the reply is not awaited."""
    assert store.read("ann") is None
    send = Stream.send

    async def sends(self: Stream, wire: bytes) -> bytes:
        await send(self, wire)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "send", sends)
        patch.setattr(Stream, "ask", sends)
        with pytest.raises(KeyboardInterrupt):
            store.create("ann", b"first", 60)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "not closed"])
def test_the_connection_is_not_used_again(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str, closed: bool
) -> None:
    """With the negative control: it is kept, and its late reply is taken for the next one."""
    with kind_of(request, kind).proxied(PATIENT) as (_, store, direct):
        if not closed:
            monkeypatch.setattr(Pool, "close", lambda self, connection: self.give_back(connection))
            monkeypatch.setattr(stream, "poll_of", lambda _: lambda _: [])
        interrupted(store, monkeypatch)
        wait_until(lambda: direct.read("ann") is not None)
        answer: Any = "no answer"
        with contextlib.suppress(Exception):
            answer = store.read("nobody's")
        assert (answer is None) == closed
        if closed:
            assert store.create("ann", b"second", 60) is None, "the first one was carried out"
        stored = direct.read("ann")
        assert stored is not None
        assert stored.record == b"first"
