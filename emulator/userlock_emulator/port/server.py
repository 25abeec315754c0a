"""The port as a whole: a socket, gRPC and HTTP/1.1 behind it, threads, start and stop."""

import abc
import math
import os
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import grpc

from userlock_emulator.limits import Limits
from userlock_emulator.port.arrivals import HURRY_SECONDS, Arrivals
from userlock_emulator.port.browsers import Gate
from userlock_emulator.port.front import Front
from userlock_emulator.port.grpc_service import serve
from userlock_emulator.port.rpcs import Rpcs
from userlock_emulator.port.web import MAX_REQUEST_BYTES, Answer, Web
from userlock_emulator.sockets import is_loopback

# Requests beside the RPCs have threads of their own, so that a fault that holds all RPCs can be
# removed.
_CONTROL_THREADS = 8


def address_of(listener: socket.socket) -> str:
    """Return the address of a listening socket, "127.0.0.1:PORT"."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Port:
    """A port that serves RPCs over gRPC, and RPCs and other requests over HTTP/1.1.

    It serves from construction until `stop`.

    Args:
        name: the name of the server, for its threads.
        listener: the public socket; closed by `stop`.
        host: the host name or address that the server was configured to listen on.
        services: the RPCs of each gRPC service, by the service's full name.
        most_seconds: the longest deadline that an RPC of this name accepts.
        is_local: returns whether a path over HTTP is for clients on this machine only.
        answer: executes an HTTP request.
        is_rpc: returns whether a path over HTTP is that of an RPC.
        limits: the bounds on clients.
    """

    def __init__(
        self,
        name: str,
        listener: socket.socket,
        host: str,
        services: Mapping[str, Rpcs],
        answer: Answer,
        is_rpc: Callable[[str], bool],
        limits: Limits,
        most_seconds: Mapping[str, float] | None = None,
        is_local: Callable[[str], bool] = lambda path: False,
    ) -> None:
        self._is_rpc = is_rpc
        # Threads are started on demand. A request that waits occupies one, and one must be left
        # for the request that ends the wait.
        self._threads = ThreadPoolExecutor(limits.max_threads, thread_name_prefix=f"{name}-rpc")
        self._control_threads = ThreadPoolExecutor(
            _CONTROL_THREADS, thread_name_prefix=f"{name}-control"
        )
        arrivals = Arrivals(limits.request_seconds, limits.max_threads)
        self._grpc = grpc.server(self._threads, interceptors=[arrivals], options=_options(limits))
        self._health = serve(self._grpc, services, most_seconds or {})
        gate = Gate(host, open_to_others=not is_loopback(listener))
        self._web = Web(answer, self._executor_of, gate, limits, self._released, is_local)
        self._web.every(HURRY_SECONDS, arrivals.expire)
        grpc_port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._front = Front(listener, grpc_port, self._web.take, limits)
        self._grpc.start()
        self._pid = os.getpid()
        self._stopped = threading.Event()
        self._stop_lock = threading.Lock()

    def _executor_of(self, path: str) -> ThreadPoolExecutor:
        return self._threads if self._is_rpc(path) else self._control_threads

    def _released(self) -> None:
        self._front.released()

    def stop(
        self,
        grace_seconds: float,
        *,
        release: Callable[[], None],
        give_up: Callable[[], None],
        close: Callable[[], None],
    ) -> None:
        """Stop listening and finish the requests in progress.

        Requests that are still running after `grace_seconds` are cancelled. A second call does
        nothing. Neither does a call in a process forked from the serving one.

        Args:
            release: called first, to end what delays requests on purpose.
            give_up: called after the time of grace, to end what requests still wait for.
            close: called when no request is being executed.
        """
        if os.getpid() != self._pid:
            return
        with self._stop_lock:
            if self._stopped.is_set():
                return
            release()
            self._health.enter_graceful_shutdown()
            answered = self._grpc.stop(grace_seconds)
            self._web.hang_up(grace_seconds)
            answered.wait()
            self._front.stop()
            give_up()
            self._threads.shutdown()
            self._control_threads.shutdown()
            self._web.join()
            close()
            self._stopped.set()

    def wait(self) -> None:
        """Block until the port has stopped."""
        self._stopped.wait()


class Running(abc.ABC):
    """A server that runs behind a port, and a context manager that stops it."""

    _port: Port

    @abc.abstractmethod
    def stop(self, grace_seconds: float = 1.0) -> None:
        """Stop serving; a second call does nothing."""

    def wait(self) -> None:
        """Block until the server has stopped."""
        self._port.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ("grpc.max_send_message_length", -1),
        # More could not be executed at the same time. The client holds them back.
        ("grpc.max_concurrent_streams", limits.max_threads),
        ("grpc.max_connection_idle_ms", _milliseconds(limits.idle_seconds)),
        ("grpc.server_handshake_timeout_ms", _milliseconds(limits.request_seconds)),
    ]


def _milliseconds(seconds: float) -> int:
    return min(math.ceil(seconds * 1000), 2**31 - 1)
