"""An interrupt in the middle of a reply: the connection is out of step and must not be reused.

us                         memcached ms k … ME ───────────────▶ HD c1           k is ours
(KeyboardInterrupt before the reply was read) ms k … ME ───────────────▶ NS              k is held
reads "HD c1": granted, it seems
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.servers import Memcached
from userlock.stores import MemcacheStore
from userlock.stores.memcache.connections import Connection


class Interrupted:
    """A socket whose next reply is not awaited."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def recv(self, size: int) -> bytes:
        raise KeyboardInterrupt


def interrupt_the_next_reply(store: MemcacheStore) -> Connection:
    connection = store.connections.idle[-1]
    connection._socket = Interrupted(connection._socket)
    return connection


@pytest.mark.parametrize("protocol", ["meta", "text"])
def test_the_connection_is_not_used_again(memcached: Memcached, protocol: str) -> None:
    store = MemcacheStore(memcached.address, prefix=f"interrupt-{protocol}", protocol=protocol)
    assert store.read("ann") is None
    connection = interrupt_the_next_reply(store)
    with pytest.raises(KeyboardInterrupt):
        store.create("ann", b"first", 60)
    assert connection not in store.connections.idle
    assert store.create("ann", b"second", 60) is None, "the first one was carried out"
    found = store.read("ann")
    assert found is not None
    assert found.record == b"first"
    store.close()


def test_used_again_it_would_give_the_late_reply_to_another_command(
    memcached: Memcached, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: without the close, the next command gets the last one's reply."""
    store = MemcacheStore(memcached.address, prefix="interrupt-control")
    assert store.read("ann") is None
    connection = interrupt_the_next_reply(store)
    monkeypatch.setattr(store.connections, "close", lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        store.create("ann", b"first", 60)
    connection._socket = connection._socket._sock
    connection.send(b"mg another-key\r\n")
    assert connection.read_line().startswith(b"HD c"), "the reply to the create, not EN"
    connection.close()
    store.close()
