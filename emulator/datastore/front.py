"""The port that clients know, held by a process of its own: see `relay`."""

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

from emulator.datastore import relay

_log = logging.getLogger(__name__)

# A relay that was killed is replaced; one that cannot even start is not, for ever.
_MAX_RESTARTS = 10

_fronts: "weakref.WeakSet[Front]" = weakref.WeakSet()


def _forget_fronts() -> None:
    """In a process that was forked: it does not serve, and keeps no relay alive."""
    for front in _fronts:
        front._ours.close()
        front._listener.close()


os.register_at_fork(after_in_child=_forget_fronts)


class Front:
    """Passes gRPC on to its server, and hands over connections that speak HTTP/1.1.

    It serves from the beginning, and until `stop()` or the end of this process. If the
    relay dies, the connections to gRPC are lost; another one takes its place, and serves
    those who connect meanwhile, too.

    Args:
        listener: where clients connect; closed by `stop()`.
        grpc_port: where gRPC's server listens on the loopback interface.
        take: is given each connection of the other kind, in a thread of this class.
    """

    def __init__(
        self, listener: socket.socket, grpc_port: int, take: Callable[[socket.socket], None]
    ) -> None:
        self._listener = listener
        self._grpc_port = grpc_port
        self._take = take
        self._lock = threading.Lock()
        self._stopping = False
        self._pid = os.getpid()
        self._launch()
        _fronts.add(self)
        self._thread = threading.Thread(target=self._serve, name="datastore-front", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def _launch(self) -> None:
        """Start a relay."""
        self._ours, theirs = socket.socketpair()
        with theirs:
            inherited = (self._listener.fileno(), theirs.fileno())
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", relay.__file__),
                    *map(str, (*inherited, self._grpc_port)),
                ],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Ctrl-C is for the emulator, which ends the relay when it is done.
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
            # They are to see it at once, and not to wait for an answer.
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
            for descriptor in descriptors:
                self._take(socket.socket(fileno=descriptor))

    def stop(self) -> None:
        """Close the port and every connection to gRPC. A second call does nothing.

        Nor does one in a process that was forked from the one that serves.
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
