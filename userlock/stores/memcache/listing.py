"""The lock records in one memcached, for operators.

memcached has no command that finds keys; its LRU crawler can write down what
it has (`lru_crawler metadump`), and does so beside its work. It may be
switched off (`-X`, `-o no_lru_crawler`), there is one for all who ask, and in a
big cache it takes long: so this goes over a connection of its own, looks at
keys only, and gives up after a time.

Source: memcached's doc/protocol.txt, "LRU Crawler".
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from urllib.parse import quote_from_bytes, unquote_to_bytes

from userlock.lock.store import Listed, ListingStopped
from userlock.stores.memcache.dialects import Item, Meta, Text
from userlock.stores.memcache.keys import KeySpace
from userlock.stores.memcache.wire import Connection, Refused

#: How long writing down what there is may take, in seconds.
LIST_SECONDS = 2.0
#: How many records are asked for in one packet.
_BATCH = 100
#: The crawler is in no hurry.
_SILENCE_SECONDS = 1.0
_BUSY_PAUSE = 0.05


def listed(connection: Connection, keys: KeySpace, limit: int) -> Iterator[Listed]:
    """Return the locks on a server, as `ListingStore.lock_ids`. Uses the connection up.

    Raises:
        OSError, MemcacheError: trouble with the server.
        ListingStopped: not all were found.
    """
    plain = keys.lock("x")[:-1]
    hashed = plain[:-1] + b"#"
    found: set[bytes] = set()
    for key in _keys(connection, quote_from_bytes(plain[:-1], safe="").encode()):
        if key in found or not key.startswith((plain, hashed)):
            continue
        found.add(key)
        if key.startswith(plain):
            yield Listed(key[len(plain) :].decode("latin-1"), False, key)
        else:
            yield Listed(f"sha256:{key[len(hashed) :].decode('latin-1')}", True, key)
        if len(found) >= limit:
            return


def _keys(connection: Connection, beginning: bytes) -> Iterator[bytes]:
    """All keys that begin so (as they are written in the dump)."""
    wanted = b"key=" + beginning
    ends = time.monotonic() + LIST_SECONDS
    # By the hash table, so that what is looked at all the time and therefore
    # moves from one LRU list to another is not missed; older servers cannot.
    commands = [b"lru_crawler metadump hash\r\n", b"lru_crawler metadump all\r\n"]
    rest = b""
    heard_at = time.monotonic()
    connection.send(commands.pop(0))
    while True:
        try:
            chunk = connection.client.sock.recv(1 << 18)
        except (TimeoutError, BlockingIOError):
            if time.monotonic() > heard_at + _SILENCE_SECONDS:
                raise
            continue
        heard_at = time.monotonic()
        if not chunk:
            raise ConnectionResetError("the server closed the connection")
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(wanted):
                yield unquote_to_bytes(line[4:].partition(b" ")[0])
            elif line.startswith(b"key="):
                continue
            elif line.startswith(b"END"):
                return
            elif line.startswith(b"BUSY") and time.monotonic() < ends:
                time.sleep(_BUSY_PAUSE)
                connection.send(b"lru_crawler metadump all\r\n")
            elif line.startswith(b"CLIENT_ERROR bad class id") and commands:
                connection.send(commands.pop(0))
            else:
                raise ListingStopped(why_not(line))
        if time.monotonic() > ends:
            raise ListingStopped(
                f"the cache has so many keys that not all could be seen in {LIST_SECONDS:g} s"
            )


def why_not(line: bytes) -> str:
    """Return why a server does not list its keys, from its answer."""
    if line.startswith(b"BUSY"):
        return "its crawler is busy with somebody else's list; try again"
    if b"not allowed" in line:
        return "memcached was started with -X, so it does not list its keys"
    if b"disabled" in line:
        return "memcached was started without its LRU crawler, so it does not list its keys"
    if line.startswith(b"ERROR"):
        return "the server does not list its keys (memcached can, from 1.4.31 on)"
    answer = line[:80].decode("latin-1").strip()
    return f"the server does not list its keys; it says {answer!r}"


def read_all(connection: Connection, keys: Sequence[bytes]) -> list[Item | None]:
    """Return the item under each key.

    Raises:
        OSError, MemcacheError, Refused: trouble with the server.
    """
    items: list[Item | None] = []
    for begin in range(0, len(keys), _BATCH):
        batch = keys[begin : begin + _BATCH]
        if connection.meta:
            connection.send(b"".join(b"mg %b c t v\r\n" % key for key in batch))
            items += [Meta._item(connection, connection.read_line()) for _ in batch]
        else:
            connection.send(b"".join(b"gets %b\r\n" % key for key in batch))
            items += [Text._item(connection) for _ in batch]
        connection.finish()
    return items


def remaining(connection: Connection, key: bytes) -> int | None:
    """Return an item's time to live in seconds by the server's clock, if it is reported."""
    if not connection.meta:
        return None
    reply = connection.line(b"mg %b t\r\n" % key)
    if reply.startswith(b"EN"):
        return None
    if not reply.startswith(b"HD t"):
        raise Refused(f"memcached answered {reply[:80]!r}")
    seconds = int(reply[4:])
    return None if seconds < 0 else seconds
