"""Starting and stopping the emulator: the socket, the threads, the settings."""

import errno
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import grpc

from emulator.datastore.clock import wall_clock_microseconds
from emulator.datastore.concurrency import Optimistic
from emulator.datastore.control import ControlServer
from emulator.datastore.engine import ControlFactory, Engine
from emulator.datastore.entity_groups import OptimisticWithEntityGroups
from emulator.datastore.faults import Faults
from emulator.datastore.pessimistic import Pessimistic
from emulator.datastore.servicer import handlers, methods
from emulator.datastore.storage import Storage

DEFAULT_PORT = 8081
DEFAULT_HOST = "127.0.0.1"
DEFAULT_CONCURRENCY_MODE = "pessimistic"
CONCURRENCY_MODES: dict[str, ControlFactory] = {
    Optimistic.name: Optimistic,
    Pessimistic.name: Pessimistic,
    OptimisticWithEntityGroups.name: OptimisticWithEntityGroups,
}
DEFAULT_PROJECT = "emulator"

# Threads are started as they are needed. In the pessimistic mode each waiting
# request has one, and there must be one left for the request that ends the wait.
_MAX_THREADS = 256
# "Limits": a request may have 10 MiB; leave room for what surrounds the entities.
_MAX_REQUEST_BYTES = 16 * 1024 * 1024
_OPTIONS = [
    # Without this a second server would silently share the port with the first.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
]

_log = logging.getLogger(__name__)


class PortInUseError(OSError):
    """The address cannot be bound: the port is taken, or the host is not this machine."""


class Emulator:
    """A running Datastore emulator. Also a context manager that stops it.

    Use `start()`.

    Attributes:
        faults: makes requests fail, or take long, on demand.
    """

    def __init__(
        self,
        server: grpc.Server,
        threads: ThreadPoolExecutor,
        engine: Engine,
        storage: Storage,
        faults: Faults,
        control: ControlServer | None,
        host: str,
        project: str,
    ) -> None:
        self.faults = faults
        self._control = control
        self._server = server
        self._threads = threads
        self._engine = engine
        self._storage = storage
        self._host = host
        self._project = project
        self._stopped = threading.Event()
        self._stop_lock = threading.Lock()

    @property
    def host(self) -> str:
        """Where it listens, as "127.0.0.1:PORT"."""
        return self._host

    @property
    def control_url(self) -> str | None:
        """Where faults are planted over HTTP, as "http://127.0.0.1:PORT"; None: nowhere."""
        return None if self._control is None else self._control.url

    @property
    def env(self) -> dict[str, str]:
        """The environment variables that send the client libraries here."""
        return {
            "DATASTORE_EMULATOR_HOST": self._host,
            "DATASTORE_DATASET": self._project,
            "DATASTORE_PROJECT_ID": self._project,
            "GOOGLE_CLOUD_PROJECT": self._project,
        }

    @property
    def waiting(self) -> int:
        """How many requests wait for transactions of others (pessimistic mode).

        For tests: one that is to wait has come as far as that.
        """
        return self._engine.waiting

    def reset(self) -> None:
        """Forget all entities of all projects, abort all transactions, remove all faults.

        Ids and versions go on growing, so that nothing from before can be taken
        for something new.
        """
        self.faults.clear()
        self._engine.reset()

    def stop(self, grace_seconds: float = 1.0) -> None:
        """Stop listening, finish the requests under way, close the data file.

        Requests that are still running after `grace_seconds` are cancelled. A
        second call does nothing.
        """
        with self._stop_lock:
            if self._stopped.is_set():
                return
            if self._control is not None:
                self._control.stop()
            self.faults.clear()  # or requests would be held beyond the end
            self._server.stop(grace_seconds).wait()
            self._engine.close()
            self._threads.shutdown()
            self._storage.close()
            self._stopped.set()

    def wait(self) -> None:
        """Block until the emulator was stopped."""
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


def _check_address(host: str, port: int) -> None:
    """Whether the address can be bound, with a better answer than gRPC's log lines."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
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
    control_port: int | None = None,
    now: Callable[[], int] = wall_clock_microseconds,
) -> Emulator:
    """Start a Datastore emulator inside this process, in threads of its own.

    Args:
        port: where to listen; 0 picks a free port (see `Emulator.host`).
        data_dir: folder for the data file, which survives restarts; None keeps
            everything in memory.
        host: the address to bind.
        project: the default project in `Emulator.env`. The emulator itself serves
            every project.
        concurrency_mode: "pessimistic" (locks delay others, as in a new database),
            "optimistic" (a transaction is aborted at commit if it read what has
            changed), or "optimistic-with-entity-groups" (the legacy mode).
        control_port: where faults can be planted over HTTP (see `Emulator.control_url`);
            0 picks a free port, None offers it nowhere. `Emulator.faults` needs none.
        now: the server's clock, in microseconds since the epoch, for tests that
            move time by hand: versions, update times and read times follow it, and
            go on growing where it does not. Transactions expire by real time.

    Returns:
        The emulator, already serving.

    Raises:
        PortInUseError: the address cannot be bound.
        StorageError: the data folder cannot be used.
        ValueError: the concurrency mode is unknown.
    """
    for each in (port, control_port or 0):
        _check_address(host, each)
    control = CONCURRENCY_MODES.get(concurrency_mode)
    if control is None:
        available = ", ".join(CONCURRENCY_MODES)
        raise ValueError(f"unknown concurrency mode {concurrency_mode!r}; available: {available}")
    storage = Storage(None if data_dir is None else Path(data_dir), now=now)
    engine = Engine(storage, control)
    faults = Faults(engine.rollback)
    threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="datastore-emulator")
    server = grpc.server(
        threads,
        handlers=[handlers(methods(engine, faults))],
        options=_OPTIONS,
    )
    address = f"[{host}]" if ":" in host else host
    try:
        bound = server.add_insecure_port(f"{address}:{port}")
        controlled = None if control_port is None else ControlServer(faults, host, control_port)
    except (RuntimeError, OSError) as error:
        server.stop(None)
        storage.close()
        raise PortInUseError(f"cannot listen on {address}: {error}") from None
    server.start()
    _log.info("Datastore emulator listens on %s:%d", address, bound)
    return Emulator(
        server, threads, engine, storage, faults, controlled, f"{address}:{bound}", project
    )
