"""Start and stop of the emulator: the socket, the threads, the settings."""

import errno
import logging
import math
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import grpc

from emulator.datastore.browsers import Gate
from emulator.datastore.clock import wall_clock_microseconds
from emulator.datastore.concurrency import Optimistic
from emulator.datastore.control import Control
from emulator.datastore.engine import ControlFactory, Engine
from emulator.datastore.entity_groups import OptimisticWithEntityGroups
from emulator.datastore.errors import StorageError
from emulator.datastore.faults import Faults
from emulator.datastore.front import Front
from emulator.datastore.http_rpcs import PREFIX, HttpRpcs, Reply
from emulator.datastore.index_policy import OFF, IndexPolicy
from emulator.datastore.pessimistic import Pessimistic
from emulator.datastore.rpcs import rpcs
from emulator.datastore.servicer import HURRY_SECONDS, Arrivals, serve
from emulator.datastore.storage import Storage
from emulator.datastore.transfer import Transfer
from emulator.datastore.web import MAX_REQUEST_BYTES, Web
from emulator.exports import datastore_variables
from emulator.limits import DEFAULTS, Limits
from emulator.sockets import is_loopback, listen

DEFAULT_PORT = 8081
DEFAULT_HOST = "127.0.0.1"
DEFAULT_CONCURRENCY_MODE = "pessimistic"
CONCURRENCY_MODES: dict[str, ControlFactory] = {
    Optimistic.name: Optimistic,
    Pessimistic.name: Pessimistic,
    OptimisticWithEntityGroups.name: OptimisticWithEntityGroups,
}
DEFAULT_PROJECT = "emulator"

# Requests beside the RPCs have threads of their own, so that a fault that holds all RPCs can be
# removed.
_CONTROL_THREADS = 8

_log = logging.getLogger(__name__)


class PortInUseError(OSError):
    """The address cannot be bound: the port is taken, or the host is not this machine."""


class Emulator:
    """A running Datastore emulator, and a context manager that stops it.

    Created by `start()`.

    Attributes:
        faults: makes requests fail or be late, on demand.
    """

    def __init__(
        self,
        listener: socket.socket,
        gate: Gate,
        storage: Storage,
        control: ControlFactory,
        indexes: IndexPolicy,
        project: str,
        limits: Limits,
    ) -> None:
        self._host = _address(listener)
        self._project = project
        self._storage = storage
        self._engine = Engine(storage, control, indexes)
        self.faults = Faults(self._engine.rollback)
        served = rpcs(self._engine, self.faults)
        # Threads are started on demand. In the pessimistic mode each waiting request occupies one,
        # and one must be left for the request that ends the wait.
        self._threads = ThreadPoolExecutor(
            limits.max_threads, thread_name_prefix="datastore-emulator"
        )
        self._control_threads = ThreadPoolExecutor(
            _CONTROL_THREADS, thread_name_prefix="datastore-control"
        )
        arrivals = Arrivals(limits.request_seconds, limits.max_threads)
        self._grpc = grpc.server(self._threads, interceptors=[arrivals], options=_options(limits))
        self._health = serve(self._grpc, served)
        self._http_rpcs = HttpRpcs(served)
        self._control = Control(self.faults, Transfer(storage, self._engine.commit), self.reset)
        self._web = Web(self._answer, self._executor_of, gate, limits, self._released)
        self._web.every(HURRY_SECONDS, arrivals.expire)
        grpc_port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._front = Front(listener, grpc_port, self._web.take, limits)
        self._grpc.start()
        self._pid = os.getpid()
        self._stopped = threading.Event()
        self._stop_lock = threading.Lock()

    def _answer(self, method: str, path: str, content_type: str, body: bytes) -> Reply:
        if path.startswith(PREFIX):
            return self._http_rpcs.answer(method, path, content_type, body)
        return self._control.answer(method, path, body)

    def _executor_of(self, path: str) -> ThreadPoolExecutor:
        return self._threads if path.startswith(PREFIX) else self._control_threads

    def _released(self) -> None:
        self._front.released()

    @property
    def host(self) -> str:
        """Return the address, "127.0.0.1:PORT", for gRPC and for HTTP."""
        return self._host

    @property
    def env(self) -> dict[str, str]:
        """Return the environment variables that direct the client libraries here."""
        return datastore_variables(self._host, self._project)

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait for other transactions (pessimistic mode).

        Tests use it to know that a request has begun to wait.
        """
        return self._engine.waiting

    def reset(self) -> None:
        """Delete all entities of all projects, abort all transactions, remove all faults.

        Ids and versions continue to grow, so that old data cannot be taken for new.
        """
        self.faults.clear()
        self._engine.reset()

    def stop(self, grace_seconds: float = 1.0) -> None:
        """Stop listening, finish the requests in progress, close the data file.

        Requests that are still running after `grace_seconds` are cancelled. A second call does
        nothing. Neither does a call in a process forked from the serving one.
        """
        if os.getpid() != self._pid:
            return
        with self._stop_lock:
            if self._stopped.is_set():
                return
            self.faults.clear()  # otherwise requests would be held beyond the end
            self._health.enter_graceful_shutdown()
            answered = self._grpc.stop(grace_seconds)
            self._web.hang_up(grace_seconds)
            answered.wait()
            self._front.stop()
            self._engine.close()
            self._threads.shutdown()
            self._control_threads.shutdown()
            self._web.join()
            self._storage.close()
            self._stopped.set()

    def wait(self) -> None:
        """Block until the emulator has stopped."""
        self._stopped.wait()

    def __enter__(self) -> "Emulator":
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = "the port is taken" if taken else error.strerror
        raise PortInUseError(f"cannot listen on {host}:{port}: {reason}") from None


def start(
    port: int = 0,
    data_dir: str | Path | None = None,
    *,
    host: str = DEFAULT_HOST,
    project: str = DEFAULT_PROJECT,
    concurrency_mode: str = DEFAULT_CONCURRENCY_MODE,
    indexes: str = OFF,
    index_file: str | Path | None = None,
    limits: Limits = DEFAULTS,
    now: Callable[[], int] = wall_clock_microseconds,
) -> Emulator:
    """Start a Datastore emulator inside this process, in threads of its own.

    A small second process holds its port, separates gRPC from HTTP, and ends with this process.

    Args:
        port: the port to listen on; 0 picks a free one (see `Emulator.host`).
        data_dir: folder for the data file, which survives restarts; None keeps
            everything in memory.
        host: the address to bind. A warning is logged if other machines can reach it.
        project: the default project in `Emulator.env`. The emulator itself serves
            every project.
        concurrency_mode: "pessimistic" (locks delay other transactions, as in a new database),
            "optimistic" (a transaction is aborted at commit if data that it has read
            changed meanwhile), or "optimistic-with-entity-groups" (the legacy mode).
        indexes: "off" (no query needs a composite index), "enforced" (a query whose
            index is not in the index file is refused, as by the service), or "auto"
            (its index is added to the file).
        index_file: the index.yaml. A changed file is read again.
        limits: the bounds on clients: connections, threads, times.
        now: the server's clock, in microseconds since the epoch, for tests that
            control time: versions, update times and read times follow it, and
            keep growing even if it stands still. Transactions expire by real time.

    Returns:
        The emulator, already serving.

    Raises:
        PortInUseError: the address cannot be bound.
        StorageError: the data folder or the index file cannot be used.
        ValueError: the concurrency mode, or the value of `indexes`, is unknown.
    """
    control = CONCURRENCY_MODES.get(concurrency_mode)
    if control is None:
        available = ", ".join(CONCURRENCY_MODES)
        raise ValueError(f"unknown concurrency mode {concurrency_mode!r}; available: {available}")
    policy = IndexPolicy(indexes, None if index_file is None else Path(index_file))
    listener = _listen(host, port)
    try:
        storage = Storage(None if data_dir is None else Path(data_dir), now=now)
    except StorageError:
        listener.close()
        raise
    gate = Gate(host, open_to_others=not is_loopback(listener))
    emulator = Emulator(listener, gate, storage, control, policy, project, limits)
    _log.info("Datastore emulator listening on %s", emulator.host)
    return emulator
