"""The port that clients know, held by a process of its own: see `relay`."""

import atexit
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

_fronts: "weakref.WeakSet[Front]" = weakref.WeakSet()


def _forget_fronts() -> None:
    """In a process that was forked: it does not serve, and keeps no relay alive."""
    for front in _fronts:
        front._ours.close()


os.register_at_fork(after_in_child=_forget_fronts)


class Front:
    """Passes gRPC on to its server, and hands over connections that speak HTTP/1.1.

    It serves from the beginning, and until `stop()` or the end of this process.

    Args:
        listener: where clients connect; closed here, and kept open by the relay.
        grpc_port: where gRPC's server listens on the loopback interface.
        take: is given each connection of the other kind, in a thread of this class.
    """

    def __init__(
        self, listener: socket.socket, grpc_port: int, take: Callable[[socket.socket], None]
    ) -> None:
        self._take = take
        self._stopping = False
        self._pid = os.getpid()
        self._ours, theirs = socket.socketpair()
        _fronts.add(self)
        with listener, theirs:
            inherited = (listener.fileno(), theirs.fileno())
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", relay.__file__),
                    *map(str, (*inherited, grpc_port)),
                ],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Ctrl-C is for the emulator, which ends the relay when it is done.
                start_new_session=True,
            )
        self._thread = threading.Thread(target=self._receive, name="datastore-front", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def _receive(self) -> None:
        while True:
            message, descriptors, _, _ = socket.recv_fds(self._ours, 1, 1)
            if not message:
                break
            for descriptor in descriptors:
                self._take(socket.socket(fileno=descriptor))
        if not self._stopping:
            _log.error("the relay in front has ended: no client can connect any more")

    def stop(self) -> None:
        """Close the port and every connection to gRPC. A second call does nothing.

        Nor does one in a process that was forked from the one that serves.
        """
        if self._stopping or os.getpid() != self._pid:
            return
        self._stopping = True
        atexit.unregister(self.stop)
        self._ours.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._ours.close()
        self._process.wait()
