"""The floor: the requests of an acquire and a release, on a bare socket.

The bytes are recorded, not invented. userlock takes and releases a lock once through a recording
relay to memcached, and `RawPair` repeats the requests, without userlock or pymemcache in between:
two requests, two replies. Only the expiry date of the lock is updated, which would otherwise be in
the past.

For Redis there is `RawRedisPair`: the SET of a missing key, with a time to live, and a script that
deletes it if the value is still the same. It is the minimum of a safe lock on Redis, and each of
the measured locks sends at least this much.
"""

from __future__ import annotations

import re
import secrets
import socket
import threading
from collections.abc import Callable

from sample_app.stack import ports

_LINE_END = b"\r\n"


def overhear(server: tuple[str, int], talk: Callable[[str], object]) -> list[bytes]:
    """Record the requests that `talk(address)` sends to the server, one reply each, on one
    connection.
    """
    requests: list[bytes] = []

    def relay(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client, socket.create_connection(server) as upstream:
            while request := client.recv(65536):
                requests.append(request)
                upstream.sendall(request)
                client.sendall(upstream.recv(65536))

    with socket.create_server((ports.LOOPBACK, 0)) as listener:
        listener.settimeout(10)
        thread = threading.Thread(target=relay, args=(listener,), daemon=True)
        thread.start()
        talk("{}:{}".format(*listener.getsockname()))
        thread.join(10)
    return requests


class RawPair:
    """A connected TCP socket (TCP_NODELAY, no timeouts) that repeats userlock's requests.

    Args:
        server: host and port.
        requests: the recording: `ms …` and then `md … C<cas>`.

    Raises:
        ValueError: the requests differ, so that this is not a floor.
    """

    def __init__(self, server: tuple[str, int], requests: list[bytes]) -> None:
        if len(requests) != 2 or not requests[0].startswith(b"ms "):
            raise ValueError(f"a pair is no longer two requests: {requests!r:.300}")
        release = re.fullmatch(rb"(md .* C)\d+\r\n", requests[1])
        if release is None:
            raise ValueError(f"not a compare-and-delete: {requests[1]!r:.300}")
        self._acquire = re.sub(rb" T\d{10} ", _a_day_later, requests[0], count=1)
        self._release = release[1]
        self.record = requests[0].split(_LINE_END)[1]
        self._socket = socket.create_connection(server)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self) -> None:
        """Make two round trips: create, and delete by the CAS number of the reply."""
        send, receive = self._socket.sendall, self._socket.recv
        send(self._acquire)
        reply = receive(4096)
        if reply[:4] != b"HD c":
            raise RuntimeError(f"memcached answered {reply!r}")
        send(self._release + reply[4:])
        if receive(4096) != b"HD\r\n":
            raise RuntimeError("memcached did not delete the item")

    def close(self) -> None:
        self._socket.close()


def _a_day_later(date: re.Match[bytes]) -> bytes:
    return b" T%d " % (int(date[0][2:]) + 86_400)


class RawRedisPair:
    """A connected TCP socket to Redis (TCP_NODELAY, no timeouts).

    Args:
        server: host and port.
        key: the lock's key.
        ttl_seconds: the length of the lease.
    """

    _SCRIPT = (
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end "
        "return 0"
    )

    def __init__(self, server: tuple[str, int], *, key: str, ttl_seconds: int) -> None:
        token = secrets.token_hex(16)
        self._socket = socket.create_connection(server)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(_redis("SCRIPT", "LOAD", self._SCRIPT))
        digest = self._socket.recv(4096).split(_LINE_END)[1].decode()
        self._acquire = _redis("SET", key, token, "NX", "PX", str(ttl_seconds * 1000))
        self._release = _redis("EVALSHA", digest, "1", key, token)

    def run(self) -> None:
        """Make two round trips: create, and delete if it is still ours."""
        send, receive = self._socket.sendall, self._socket.recv
        send(self._acquire)
        reply = receive(4096)
        if reply != b"+OK\r\n":
            raise RuntimeError(f"Redis answered {reply!r}")
        send(self._release)
        if receive(4096) != b":1\r\n":
            raise RuntimeError("Redis did not delete the key")

    def close(self) -> None:
        self._socket.close()


def _redis(*words: str) -> bytes:
    """Encode a command in the Redis protocol."""
    parts = [f"*{len(words)}"]
    for word in words:
        parts += [f"${len(word.encode())}", word]
    return _LINE_END.join([*(part.encode() for part in parts), b""])
