"""Commands on one connection to memcached: sent in full, or an error."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from userlock.stores.memcache.wire import Wire

#: More than the buffers of both ends take.
LONG = os.urandom(1 << 20) * 8


class Client:
    """A pymemcache client, as far as a wire needs it."""

    def __init__(self, timeout: float) -> None:
        self.sock, self.server = socket.socketpair()
        self.timeout = timeout

    def set_many(self, values: dict[str, bytes], *, noreply: bool) -> None:
        """Connect: the answer to the question for the version is there already."""
        self.server.sendall(b"VERSION 1.6.18\r\n")

    def close(self) -> None:
        self.sock.close()
        self.server.close()


def connected(client: Client) -> Wire:
    wire = Wire(client, client.timeout)
    assert client.server.recv(64) == b"version\r\n"
    return wire


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client(timeout=30)
    yield made
    made.close()


def test_a_long_command_arrives_in_full(client: Client) -> None:
    received = bytearray()

    def read() -> None:
        while len(received) < len(LONG):
            received.extend(client.server.recv(65536))

    wire = connected(client)
    reader = threading.Thread(target=read)
    reader.start()
    wire.send(LONG)
    reader.join()
    assert bytes(received) == LONG


def test_a_server_that_does_not_read_is_a_timeout() -> None:
    client = Client(timeout=0.01)
    wire = connected(client)
    with pytest.raises(TimeoutError):
        wire.send(LONG)
    with pytest.raises(TimeoutError):  # with no room from the start
        wire.send(b"mn\r\n")
    client.close()


def test_a_closed_connection_sends_nothing_to_the_file_that_gets_its_number(client: Client) -> None:
    wire = connected(client)
    number = client.sock.fileno()
    wire.close()
    reader, writer = os.pipe()
    os.dup2(writer, number)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            wire.send(b"mn\r\n")
    finally:
        for each in {reader, writer, number}:
            os.close(each)
