"""The list of keys, beside the real memcached, and as `userlock locks` reads it."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from userlock_emulator import memcache

Address = tuple[str, int]

ITEMS = (
    b"set a%b/=~c 0 0 3\r\nabc\r\nset young 5 100 10\r\n0123456789\r\nset gone 0 -1 1\r\nx\r\n"
    b"set large 0 0 5000\r\n" + b"x" * 5000 + b"\r\nget young\r\nget young\r\n"
)


@pytest.fixture(params=["real", "embedded"])
def address(request: pytest.FixtureRequest) -> Iterator[Address]:
    if request.param == "real":
        server = request.getfixturevalue("own_memcached")
        host, _, port = server.address.partition(":")
        yield host, int(port)
        return
    with memcache.start() as server:
        yield server.host, server.port


def ask(address: Address, sent: bytes, last: bytes = b"\n") -> bytes:
    """Return the reply up to `last`. The real server lists from a thread of its own."""
    received = b""
    with socket.create_connection(address, timeout=5) as client:
        client.sendall(sent)
        while not received.endswith(last):
            chunk = client.recv(65536)
            assert chunk, received
            received += chunk
    return received


@pytest.mark.parametrize("which", [b"all", b"hash"])
def test_the_keys_are_listed(address: Address, which: bytes) -> None:
    ask(address, b"flush_all\r\n" + ITEMS + b"mn\r\n", b"MN\r\n")
    facts = listed(address, which)
    # The real server passes over an item that it moves between its LRU lists at that moment.
    for _ in range(100):
        if len(facts) < 3:
            facts |= listed(address, which)
    assert sorted(facts) == [
        b"key=a%25b%2F%3D~c exp=-1 # # fetch=no cls=1 size=69\n",
        b"key=large exp=-1 # # fetch=no cls=19 size=5064\n",
        b"key=young # # # fetch=yes cls=1 size=78\n",
    ]


def listed(address: Address, which: bytes) -> set[bytes]:
    """List the keys once, without times and versions."""
    said = ask(address, b"lru_crawler metadump " + which + b"\r\n", b"END\r\n")
    lines = said.removesuffix(b"END\r\n").splitlines(keepends=True)
    return {re.sub(rb"(la|cas)=\d+|exp=[1-9]\d+", b"#", each) for each in lines}


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (b"lru_crawler", b"ERROR\r\n"),
        (b"lru_crawler metadump", b"ERROR\r\n"),
        (b"lru_crawler metadump all x", b"ERROR\r\n"),
        (b"lru_crawler metadump some", b"BADCLASS invalid class id\r\n"),
        (b"lru_crawler metadump 1,x", b"BADCLASS invalid class id\r\n"),
        (b"lru_crawler metadump 0", b"BADCLASS invalid class id\r\n"),
        (b"lru_crawler metadump 300", b"BADCLASS invalid class id\r\n"),
    ],
)
def test_refused(address: Address, command: bytes, says: bytes) -> None:
    assert ask(address, command + b"\r\n") == says


def test_many_keys() -> None:
    with memcache.start() as server:
        where = server.host, server.port
        ask(where, b"".join(b"ms k%d 1 q\r\nx\r\n" % n for n in range(1050)) + b"mn\r\n", b"MN\r\n")
        said = ask(where, b"lru_crawler metadump all\r\n", b"END\r\n")
        assert said.count(b"key=k") == 1050
