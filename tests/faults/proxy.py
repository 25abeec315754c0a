"""A TCP proxy with faults on demand, one command at a time."""

from __future__ import annotations

import contextlib
import enum
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Fault(enum.Enum):
    """The fault of one command."""

    #: The server executes it; the connection stays open, but nothing arrives on it any more.
    DROP_REPLY = "drop reply"
    #: The server executes it; the connection is closed instead of a reply.
    CUT_AFTER = "cut after"
    #: The server never sees it; the connection is closed.
    CUT_BEFORE = "cut before"
    #: The server never sees it; there is no reply.
    SWALLOW = "swallow"
    #: The server sees it only after `deliver`; the client sees nothing.
    DELAY = "delay"
    #: Half of the reply arrives, then the connection is closed.
    CUT_REPLY = "cut reply"


class ReplyFault(enum.Enum):
    """The fault of one reply. The server has executed the command."""

    #: It arrives after `LATE_SECONDS`, on the same connection.
    LATE = "late reply"
    #: The proxy announces the end of its data, and continues to accept commands.
    HALF_CLOSE = "half close"


#: Later than the reply timeout of any store.
LATE_SECONDS = 0.5


class FaultProxy:
    """A proxy for `127.0.0.1:target_port`, and a context manager.

    `faults` maps the first bytes of a command to the fault of the next such command; each entry is
    used once. `plan` does the same by number, for any command: 0 is the next one after `arm`.
    `seen` lists the received commands.
    """

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.faults: dict[bytes, Fault] = {}
        self.plan: dict[int, Fault | ReplyFault] = {}
        self.seen: list[bytes] = []
        self._armed_at = 0
        self._counting = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._mute: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._delayed: list[tuple[bytes, socket.socket]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> FaultProxy:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()  # not earlier: its thread may be about to use it
        for sock in self._sockets:
            sock.close()
        for _data, never_sent in self._delayed:
            never_sent.close()

    @contextmanager
    def fault(self, command: bytes, fault: Fault) -> Iterator[None]:
        """Apply `fault` to the next command that begins with `command`; there must be one."""
        self.faults[command] = fault
        yield
        assert command not in self.faults, f"there was no {command!r}: {self.seen}"

    def arm(self, plan: dict[int, Fault | ReplyFault]) -> None:
        """Plan the faults of the commands from now on, by their numbers."""
        self._armed_at = len(self.seen)
        self.plan = dict(plan)

    @property
    def passed(self) -> int:
        """Return the number of commands since `arm`."""
        return len(self.seen) - self._armed_at

    def deliver(self) -> None:
        """Deliver the delayed commands now."""
        for data, sock in self._delayed:
            sock.sendall(data)
            sock.recv(65536)
            sock.close()
        self._delayed.clear()

    def _spawn(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            if not select.select([self._listener], [], [], 0.05)[0]:
                continue
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            self._spawn(self._serve, client, server)

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """Forward one command at a time: the clients under test never pipeline."""
        while not self._stopping.is_set():
            ready, _, _ = select.select([client, server], [], [], 0.05)
            for sock in ready:
                try:
                    data = sock.recv(65536)
                except OSError:
                    data = b""
                if not data or (sock is client and not self._pass(data, client, server)):
                    self._close(client)
                    self._close(server)
                    return
                if sock is server and client not in self._mute:
                    with contextlib.suppress(OSError):
                        client.sendall(data)

    def _pass(self, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        """Forward a command, with its fault. False: close both ends."""
        with self._counting:
            fault = self.plan.pop(self.passed, None)
            self.seen.append(data)
        if isinstance(fault, ReplyFault):
            self._fail_reply(fault, data, client, server)
            return True
        if fault is None:
            matching = (self.faults.pop(c) for c in list(self.faults) if data.startswith(c))
            fault = next(matching, None)
        if fault is Fault.CUT_BEFORE:
            return False
        if fault is Fault.SWALLOW:
            return True
        if fault is Fault.DELAY:
            # On a connection of its own, so that it arrives although the client has abandoned this
            # one.
            self._delayed.append((data, socket.create_connection(self._target)))
            return True
        server.sendall(data)
        if fault in (Fault.DROP_REPLY, Fault.CUT_AFTER, Fault.CUT_REPLY):
            reply = server.recv(65536)
            if fault is Fault.CUT_REPLY:
                client.sendall(reply[: len(reply) // 2])
            if fault is Fault.DROP_REPLY:
                # A reply may come in pieces, and no network loses only the first.
                self._mute.add(client)
            return fault is Fault.DROP_REPLY
        return True

    def _fail_reply(
        self, fault: ReplyFault, data: bytes, client: socket.socket, server: socket.socket
    ) -> None:
        server.sendall(data)
        reply = server.recv(65536)
        with contextlib.suppress(OSError):
            if fault is ReplyFault.HALF_CLOSE:
                client.shutdown(socket.SHUT_WR)
            else:
                self._stopping.wait(LATE_SECONDS)
                client.sendall(reply)

    @staticmethod
    def _close(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
