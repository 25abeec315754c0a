"""The bad network of the chaos run behaves as configured."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from random import Random

import pytest

from sample_app.stack.ports import LOOPBACK
from tests.chaos.network import Network, Trouble, Weather


class _Echo:
    """A server that returns its input, and records it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1024):
                self.heard.append(data)
                connection.sendall(data)

    def close(self) -> None:
        """Stop listening. Repeated calls are allowed."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[_Echo]:
    echo = _Echo()
    yield echo
    echo.close()


@pytest.fixture
def network(echo: _Echo) -> Iterator[Network]:
    with Network(echo.port, Random(1)) as network:
        yield network


@pytest.fixture
def client(network: Network) -> Iterator[socket.socket]:
    with socket.create_connection((LOOPBACK, network.port), timeout=10) as client:
        client.sendall(b"first")
        assert client.recv(1024) == b"first"
        yield client


def test_late(network: Network, client: socket.socket) -> None:
    began = time.monotonic()
    with network.weather(Weather(Trouble.LATE, share=1.0, seconds=0.1)):
        client.sendall(b"late")
        assert client.recv(1024) == b"late"
    assert network.hit == {Trouble.LATE: 2}
    assert time.monotonic() - began >= 0.2  # both ways


@pytest.mark.parametrize("trouble", [Trouble.CUT, Trouble.CUT_AFTER])
def test_cut(network: Network, client: socket.socket, echo: _Echo, trouble: Trouble) -> None:
    with network.weather(Weather(trouble, share=1.0)):
        client.sendall(b"cut")
        assert client.recv(1024) == b""
    assert (b"cut" in echo.heard) <= (trouble is Trouble.CUT_AFTER)


def test_half_closed(network: Network, client: socket.socket, echo: _Echo) -> None:
    with network.weather(Weather(Trouble.HALF_CLOSED, share=1.0)):
        client.sendall(b"half")
        assert client.recv(1024) == b""
    assert echo.heard == [b"first", b"half"]


@pytest.mark.parametrize("trouble", [Trouble.REPLIES_LOST, Trouble.COMMANDS_LOST])
def test_lost_for_as_long_as_the_connection_lives(
    network: Network, client: socket.socket, trouble: Trouble
) -> None:
    with network.weather(Weather(trouble, share=1.0)):
        client.sendall(b"lost")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1024)
    client.sendall(b"after")
    with pytest.raises(TimeoutError):
        client.recv(1024)


def test_all_at_once(network: Network, client: socket.socket) -> None:
    network.cut()
    assert client.recv(1024) == b""


def test_only_a_share_is_hit(network: Network, client: socket.socket) -> None:
    with network.weather(Weather(Trouble.CUT, share=0.0)):
        client.sendall(b"well")
        assert client.recv(1024) == b"well"
    assert network.hit.total() == 0


def test_a_dead_server(echo: _Echo, network: Network) -> None:
    echo.close()
    with socket.create_connection((LOOPBACK, network.port), timeout=10) as client:
        assert client.recv(1024) == b""
