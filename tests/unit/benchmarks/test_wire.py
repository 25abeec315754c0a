"""The floor repeats the recording, and refuses any other."""

from __future__ import annotations

import socket
import threading

import pytest

from benchmarks.wire import RawPair, RawRedisPair, overhear

ACQUIRE = b"ms k 3 T61 c ME\r\nabc\r\n"
RELEASE = b"md k C7\r\n"


class _Script:
    """A server on one connection: each request must be as scripted, and gets the scripted reply."""

    def __init__(self, *script: tuple[bytes, bytes]) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.seen: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            for expected, answer in self._script:
                request = b""
                while len(request) < len(expected) and (more := connection.recv(4096)):
                    request += more
                self.seen.append(request)
                connection.sendall(answer)

    def finish(self) -> None:
        self._thread.join(10)
        self._listener.close()


def test_a_conversation_is_recorded() -> None:
    server = _Script((ACQUIRE, b"HD c7\r\n"), (RELEASE, b"HD\r\n"))

    def talk(address: str) -> None:
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(ACQUIRE)
            assert connection.recv(100) == b"HD c7\r\n"
            connection.sendall(RELEASE)
            assert connection.recv(100) == b"HD\r\n"

    assert overhear(server.address, talk) == [ACQUIRE, RELEASE]
    server.finish()
    assert server.seen == [ACQUIRE, RELEASE]


def test_the_floor_deletes_by_the_number_it_was_given() -> None:
    server = _Script((ACQUIRE, b"HD c1234\r\n"), (b"md k C1234\r\n", b"HD\r\n"))
    pair = RawPair(server.address, [ACQUIRE, RELEASE])
    pair.run()
    pair.close()
    server.finish()
    assert server.seen == [ACQUIRE, b"md k C1234\r\n"]
    assert pair.record == b"abc"


def test_an_expiry_date_is_updated() -> None:
    """An item with an expiry date in the past is not stored at all."""
    later = b"ms k 3 T1763726465 c ME\r\nabc\r\n"
    server = _Script((later, b"HD c1\r\n"), (b"md k C1", b"HD\r\n"))
    pair = RawPair(server.address, [b"ms k 3 T1763640065 c ME\r\nabc\r\n", RELEASE])
    pair.run()
    pair.close()
    server.finish()
    assert server.seen[0] == later


@pytest.mark.parametrize(
    "script",
    [
        [(ACQUIRE, b"NS\r\n")],
        [(ACQUIRE, b"HD c7\r\n"), (RELEASE, b"NF\r\n")],
    ],
)
def test_the_floor_is_no_floor_when_memcached_refuses(script: list[tuple[bytes, bytes]]) -> None:
    server = _Script(*script)
    pair = RawPair(server.address, [ACQUIRE, RELEASE])
    with pytest.raises(RuntimeError, match="memcached"):
        pair.run()
    pair.close()
    server.finish()


@pytest.mark.parametrize(
    "requests",
    [[], [ACQUIRE], [ACQUIRE, RELEASE, RELEASE], [RELEASE, ACQUIRE], [ACQUIRE, b"md k\r\n"]],
)
def test_another_protocol_than_expected_is_no_floor(requests: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"no longer two|not a compare-and-delete"):
        RawPair(("127.0.0.1", 1), requests)


DIGEST = b"0123456789abcdef0123456789abcdef01234567"


class _Redis:
    """A Redis on one connection that returns these replies to any request."""

    def __init__(self, *answers: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.seen: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, args=(answers,), daemon=True)
        self._thread.start()

    def _serve(self, answers: tuple[bytes, ...]) -> None:
        connection, _ = self._listener.accept()
        with connection:
            for answer in answers:
                self.seen.append(connection.recv(4096))
                connection.sendall(answer)

    def finish(self) -> None:
        self._thread.join(10)
        self._listener.close()


LOADED = b"$40\r\n" + DIGEST + b"\r\n"


def test_the_floor_of_redis_is_a_set_and_a_script() -> None:
    server = _Redis(LOADED, b"+OK\r\n", b":1\r\n")
    pair = RawRedisPair(server.address, key="k", ttl_seconds=61)
    pair.run()
    pair.close()
    server.finish()
    _, acquire, release = (request.split(b"\r\n") for request in server.seen)
    assert acquire[::2][1:] == [b"SET", b"k", acquire[6], b"NX", b"PX", b"61000"]
    assert release[::2][1:] == [b"EVALSHA", DIGEST, b"1", b"k", acquire[6]]


@pytest.mark.parametrize("answers", [(b"$-1\r\n",), (b"+OK\r\n", b":0\r\n")])
def test_the_floor_of_redis_is_no_floor_when_it_refuses(answers: tuple[bytes, ...]) -> None:
    server = _Redis(LOADED, *answers)
    pair = RawRedisPair(server.address, key="k", ttl_seconds=61)
    with pytest.raises(RuntimeError, match="Redis"):
        pair.run()
    pair.close()
    server.finish()
