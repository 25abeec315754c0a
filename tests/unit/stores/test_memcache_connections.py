"""Which connections a version's CAS number is trusted on."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from userlock.lock.store import StoreUnavailable
from userlock.stores import MemcacheStore
from userlock.stores.memcache.connections import Connections


class Client:
    """As pymemcache's, as far as a connection needs it."""

    def __init__(self, while_connecting: Any) -> None:
        self.sock, self._other = socket.socketpair()
        self.timeout = 0.3
        self._while_connecting = while_connecting

    def version(self) -> bytes:
        self._while_connecting()
        return b"1.6.18"

    def close(self) -> None:
        self.sock.close()
        self._other.close()


def test_one_that_stands_since_after_a_version_is_younger_than_it() -> None:
    """However early it was begun: the server may have been restarted while it was made.

    we                           memcached
    begin to connect
    (another thread: version 1)
                                 restarts
    connected to the new server  version 1 is another's here
    """
    got: list[int] = []
    pool = Connections(
        "127.0.0.1",
        11211,
        connect_timeout=0.1,
        timeout=0.3,
        client_factory=lambda *_: Client(lambda: got.append(next(pool.sequence))),
    )
    connection = pool.make()
    assert connection.made > got[0]
    connection.close()


def test_a_reply_that_makes_no_sense_is_refused() -> None:
    class Nonsense(Client):
        def version(self) -> bytes:
            self._other.sendall(b"VA what c1\r\n")
            return b"1.6.18"

    store = MemcacheStore(client_factory=lambda *_: Nonsense(lambda: None))
    with pytest.raises(StoreUnavailable, match="VA what"):
        store.read("ann")
