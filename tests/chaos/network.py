"""A network between the processes and a lease server that is unreliable at times.

`tests.faults.proxy` does one thing to one command. This one does the same to many connections, as
long as the weather lasts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import socket
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from random import Random

from sample_app.stack.ports import LOOPBACK


class Trouble(enum.Enum):
    """A fault of a packet."""

    LATE = "packets late"
    REPLIES_LOST = "replies lost"
    COMMANDS_LOST = "commands lost"
    CUT = "connections cut"
    CUT_AFTER = "connections cut after the command"
    HALF_CLOSED = "connections half closed"
    WAKE_UPS_LOST = "wake-ups lost"


#: The faults of a packet on its way to the server. The others are on the way back.
_ON_THE_WAY_THERE = (Trouble.LATE, Trouble.COMMANDS_LOST, Trouble.CUT, Trouble.CUT_AFTER)
_ON_THE_WAY_BACK = (
    Trouble.LATE,
    Trouble.REPLIES_LOST,
    Trouble.HALF_CLOSED,
    Trouble.WAKE_UPS_LOST,
)
#: The begins of a message that Redis passes on to a subscriber.
_MESSAGES = (b"*3\r\n$7\r\nmessage\r\n", b"*3\r\n$8\r\nsmessage\r\n")


@dataclasses.dataclass(frozen=True)
class Weather:
    """The state of the network.

    Attributes:
        share: the share of affected packets, from 0 to 1.
        seconds: the delay of late packets.
    """

    trouble: Trouble
    share: float
    seconds: float = 0.0


class Network:
    """A proxy for `127.0.0.1:target_port`, and a context manager.

    Args:
        target_port: the server's port. The server may be killed and restarted.
        random: selects the affected packets.

    Attributes:
        hit: number of affected packets by fault.
    """

    def __init__(self, target_port: int, random: Random) -> None:
        self._target = (LOOPBACK, target_port)
        self._random = random
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self.hit: Counter[Trouble] = Counter()
        self._weather: Weather | None = None
        self._links: set[_Link] = set()
        self._mutex = threading.Lock()
        self._accepting = threading.Thread(target=self._accept)

    @contextlib.contextmanager
    def weather(self, weather: Weather) -> Iterator[None]:
        """Set the weather for the time of the block."""
        self._weather = weather
        try:
            yield
        finally:
            self._weather = None

    def cut(self) -> None:
        """Break all connections at once."""
        with self._mutex:
            links = list(self._links)
        for link in links:
            link.close()

    def hits(self, troubles: Collection[Trouble], data: bytes) -> Weather | None:
        """Return the weather if it affects this packet, to which only these faults apply."""
        weather = self._weather
        if weather is None or weather.trouble not in troubles:
            return None
        if weather.trouble is Trouble.WAKE_UPS_LOST and not data.startswith(_MESSAGES):
            return None
        if self._random.random() >= weather.share:
            return None
        with self._mutex:
            self.hit[weather.trouble] += 1
        return weather

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # the run is over
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            link = _Link(self, client, server)
            with self._mutex:
                self._links.add(link)
            link.start()

    def ended(self, link: _Link) -> None:
        """Remove a connection that has ended."""
        with self._mutex:
            self._links.discard(link)

    def __enter__(self) -> Network:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        with self._mutex:
            links = list(self._links)
        for link in links:
            link.close()
            link.join()


class _Link:
    """One connection, in two halves."""

    def __init__(self, network: Network, client: socket.socket, server: socket.socket) -> None:
        self._network = network
        self._client = client
        self._server = server
        self._halves = [
            threading.Thread(target=self._carry, args=half, daemon=True)
            for half in (
                (client, server, _ON_THE_WAY_THERE),
                (server, client, _ON_THE_WAY_BACK),
            )
        ]
        self._left = len(self._halves)
        self._mutex = threading.Lock()

    def start(self) -> None:
        for half in self._halves:
            half.start()

    def join(self) -> None:
        for half in self._halves:
            half.join()

    def close(self) -> None:
        """Break the connection; both halves end."""
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _carry(
        self, source: socket.socket, target: socket.socket, troubles: Collection[Trouble]
    ) -> None:
        silent = False  # no network loses only the first packet
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                weather = self._network.hits(troubles, data)
                trouble = None if weather is None else weather.trouble
                if weather is not None and trouble is Trouble.LATE:
                    time.sleep(weather.seconds)
                elif trouble in (Trouble.REPLIES_LOST, Trouble.COMMANDS_LOST):
                    silent = True
                elif trouble is Trouble.HALF_CLOSED:
                    target.shutdown(socket.SHUT_WR)
                    silent = True
                if trouble is Trouble.WAKE_UPS_LOST:
                    continue
                if trouble is Trouble.CUT:
                    break
                if trouble is Trouble.CUT_AFTER:
                    source.shutdown(socket.SHUT_RDWR)  # before there can be a reply
                if not silent:
                    target.sendall(data)
                if trouble is Trouble.CUT_AFTER:
                    break
        self.close()
        with self._mutex:
            self._left -= 1
            last = not self._left
        if last:
            self._client.close()
            self._server.close()
            self._network.ended(self)
