"""The public port, held by a process of its own: see `relay`."""

import atexit
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

from userlock_emulator.limits import DEFAULTS, Limits
from userlock_emulator.port import relay

_log = logging.getLogger(__name__)

# A relay that was killed is replaced. If the relay cannot even start, the retries stop after this
# many.
_MAX_RESTARTS = 10

_fronts: "weakref.WeakSet[Front]" = weakref.WeakSet()


def _forget_fronts() -> None:
    """Forget the fronts in a forked process: it does not serve and keeps no relay alive."""
    for front in _fronts:
        front._ours.close()
        front._listener.close()


os.register_at_fork(after_in_child=_forget_fronts)


class Front:
    """The public port: forwards gRPC to its server and hands over HTTP/1.1 connections.

    It serves from construction until `stop()` or the end of this process. If the relay dies, the
    gRPC connections are lost. Another relay takes its place and also serves clients that connected
    in between.

    Args:
        listener: the socket that clients connect to; closed by `stop()`.
        grpc_port: port of the gRPC server on the loopback interface.
        take: called with each HTTP/1.1 connection, in a thread of this class. Call `released`
            when it has ended.
        limits: the bounds on connections.
    """

    def __init__(
        self,
        listener: socket.socket,
        grpc_port: int,
        take: Callable[[socket.socket], None],
        limits: Limits = DEFAULTS,
    ) -> None:
        self._listener = listener
        self._grpc_port = grpc_port
        self._take = take
        self._limits = limits
        # The relay counts all connections. A new one learns how many there are here.
        self._taken = 0
        self._taken_lock = threading.Lock()
        self._lock = threading.Lock()
        self._stopping = False
        self._pid = os.getpid()
        self._launch()
        _fronts.add(self)
        self._thread = threading.Thread(target=self._serve, name="emulator-front", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def _launch(self) -> None:
        """Start a relay."""
        with self._taken_lock:
            self._ours, theirs = socket.socketpair()
            taken = self._taken
        with theirs:
            inherited = (self._listener.fileno(), theirs.fileno())
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", relay.__file__),
                    *map(str, (*inherited, self._grpc_port)),
                    str(self._limits.max_connections),
                    str(self._limits.request_seconds),
                    str(taken),
                ],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Ctrl-C is for the emulator, which stops the relay at the end.
                start_new_session=True,
            )

    def _serve(self) -> None:
        for _ in range(_MAX_RESTARTS):
            self._receive()
            with self._lock:
                if self._stopping:
                    return
                self._process.wait()
                self._ours.close()
                _log.warning("the relay has ended (%s): restarting it", self._ended)
                try:
                    self._launch()
                except OSError as error:
                    _log.warning("the relay could not be started: %s", error)
        self._receive()
        if not self._stopping:
            _log.error("the relay keeps ending: clients can no longer connect")
            # Clients see the closed port at once, instead of waiting for a reply.
            self._listener.close()

    @property
    def _ended(self) -> str:
        code = self._process.returncode
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _receive(self) -> None:
        """Take connections from the relay until it ends."""
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(self._ours, 1, 1)
            except ConnectionResetError:
                return
            if not message:
                return
            with self._taken_lock:
                self._taken += 1
            if not descriptors:  # this process has no free file descriptor
                self.released()
            for descriptor in descriptors:
                self._take(socket.socket(fileno=descriptor))

    def released(self) -> None:
        """Report that a connection has ended, so that another client may take its place."""
        with self._taken_lock:
            self._taken -= 1
            with contextlib.suppress(OSError):  # the relay has ended; the next one gets the number
                self._ours.send(b".")

    def stop(self) -> None:
        """Close the port and every connection to gRPC. A second call does nothing.

        In a process forked from the serving one it does nothing, either.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            with contextlib.suppress(OSError):  # the relay has ended
                self._ours.shutdown(socket.SHUT_RDWR)
        atexit.unregister(self.stop)
        self._thread.join()
        self._ours.close()
        self._listener.close()
        self._process.wait()
