"""Start and stop of the emulator: the socket, the threads, the settings."""

import ipaddress
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from userlock_emulator.arguments import check
from userlock_emulator.datastore.admin import SERVICE as ADMIN
from userlock_emulator.datastore.admin import Admin
from userlock_emulator.datastore.clock import wall_clock_microseconds
from userlock_emulator.datastore.concurrency import Optimistic
from userlock_emulator.datastore.control import Control
from userlock_emulator.datastore.engine import ControlFactory, Engine
from userlock_emulator.datastore.entity_groups import OptimisticWithEntityGroups
from userlock_emulator.datastore.errors import StorageError
from userlock_emulator.datastore.export_urls import ExportPlaces
from userlock_emulator.datastore.faults import Faults
from userlock_emulator.datastore.http_rpcs import PREFIX, HttpRpcs
from userlock_emulator.datastore.index_policy import ENFORCED, OFF, IndexPolicy
from userlock_emulator.datastore.operations import SERVICE as OPERATIONS
from userlock_emulator.datastore.operations import Operations
from userlock_emulator.datastore.pessimistic import Pessimistic
from userlock_emulator.datastore.rpcs import SERVICE, rpcs, with_log
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.datastore.transfer import Transfer
from userlock_emulator.datastore.viewer.paths import PREFIX as VIEWER
from userlock_emulator.datastore.viewer.paths import is_viewer, may_wait
from userlock_emulator.exports import datastore_variables
from userlock_emulator.limits import DEFAULTS, Limits
from userlock_emulator.port.reply import Reply
from userlock_emulator.port.server import Port, Running, address_of
from userlock_emulator.sockets import PortInUseError as PortInUseError
from userlock_emulator.sockets import is_loopback, listen

if TYPE_CHECKING:
    from userlock_emulator.datastore.viewer.pages import Viewer

DEFAULT_PORT = 8081
DEFAULT_HOST = "127.0.0.1"
DEFAULT_CONCURRENCY_MODE = "pessimistic"
CONCURRENCY_MODES: dict[str, ControlFactory] = {
    Optimistic.name: Optimistic,
    Pessimistic.name: Pessimistic,
    OptimisticWithEntityGroups.name: OptimisticWithEntityGroups,
}
DEFAULT_PROJECT = "emulator"

_log = logging.getLogger(__name__)


class Emulator(Running):
    """A running Datastore emulator, and a context manager that stops it.

    Created by `start()`.

    Attributes:
        faults: makes requests fail or be late, on demand.
    """

    def __init__(
        self,
        listener: socket.socket,
        host: str,
        storage: Storage,
        control: ControlFactory,
        indexes: IndexPolicy,
        project: str,
        limits: Limits,
        *,
        edit: bool,
        exports: Path | None,
    ) -> None:
        self._host = address_of(listener)
        self._project = project
        self._storage = storage
        self._indexes = indexes
        self._edit = edit
        self._engine = Engine(storage, control, indexes)
        self.faults = Faults(self._engine.rollback)
        served = rpcs(self._engine, self.faults)
        self._operations = Operations()
        places = ExportPlaces(exports, anywhere=is_loopback(listener))
        admin = Admin(storage, self._engine.commit, indexes, self._operations, places)
        administered = with_log(admin.rpcs())
        # As in the service's URLs, and those of Google's emulators.
        transfers = {name: administered[f"{name}Entities"] for name in ("Export", "Import")}
        self._http_rpcs = HttpRpcs({**served, **transfers})
        transfer = Transfer(storage, self._engine.commit)
        self._control = Control(self.faults, transfer, self.reset, self._shut_down)
        self._viewer: Viewer | None = None
        self._viewer_lock = threading.Lock()
        self._viewer_url = _viewer_url(listener)
        self._port = Port(
            "datastore",
            listener,
            host,
            {
                SERVICE: served,
                ADMIN: administered,
                OPERATIONS: with_log(self._operations.rpcs()),
            },
            self._answer,
            lambda path: path.startswith(PREFIX) or may_wait(path),
            limits,
            is_local=is_viewer,
        )

    def _answer(self, method: str, path: str, content_type: str, body: bytes) -> Reply:
        if path.startswith(PREFIX):
            return self._http_rpcs.answer(method, path, content_type, body)
        if is_viewer(path):
            return self._viewed().answer(method, path, body)
        return self._control.answer(method, path, body)

    def _viewed(self) -> "Viewer":
        with self._viewer_lock:
            if self._viewer is None:
                # A start without a look at the pages need not pay for their imports.
                from userlock_emulator.datastore.viewer.pages import Viewer

                self._viewer = Viewer(
                    self._storage,
                    self._engine,
                    self.faults,
                    project=self._project,
                    enforces=self._indexes.mode == ENFORCED,
                    edit=self._edit,
                    reset=self.reset,
                )
            return self._viewer

    @property
    def viewer_url(self) -> str | None:
        """Return the address of the viewer, or None if it cannot be reached from this machine."""
        return self._viewer_url

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

    def _shut_down(self) -> None:
        """Stop in a thread of its own: `stop` waits for the request that asks for it."""
        threading.Thread(target=self.stop, name="datastore-shutdown").start()

    def stop(self, grace_seconds: float = 1.0) -> None:
        """Stop listening, finish the requests in progress, close the data file.

        Requests that are still running after `grace_seconds` are cancelled. A second call does
        nothing. Neither does a call in a process forked from the serving one.
        """
        self._port.stop(
            grace_seconds,
            release=self.faults.clear,
            give_up=self._engine.close,
            close=self._close,
        )

    def _close(self) -> None:
        self._operations.close()
        self._storage.close()


def _viewer_url(listener: socket.socket) -> str | None:
    address, port = listener.getsockname()[:2]
    if is_loopback(listener):
        return f"http://{address_of(listener)}{VIEWER}/"
    # Of all addresses, the loopback interface's are among them. Of others, they are not.
    everywhere = ipaddress.ip_address(address).is_unspecified
    return f"http://localhost:{port}{VIEWER}/" if everywhere else None


def start(
    port: int = 0,
    data_dir: str | Path | None = None,
    *,
    host: str = DEFAULT_HOST,
    project: str = DEFAULT_PROJECT,
    concurrency_mode: str = DEFAULT_CONCURRENCY_MODE,
    indexes: str = OFF,
    index_file: str | Path | None = None,
    edit: bool = False,
    exports: str | Path | None = None,
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
        edit: the viewer's pages may change data, roll back transactions and reset.
        exports: the folder whose folders are the buckets of `gs://BUCKET/PATH` in exports and
            imports of the admin API. None: no buckets, but any folder of this machine, as long as
            only programs on it can connect.
        limits: the bounds on clients: connections, threads, times.
        now: the server's clock, in microseconds since the epoch, for tests that
            control time: versions, update times and read times follow it, and
            keep growing even if it stands still. Transactions expire by real time.

    Returns:
        The emulator, already serving.

    Raises:
        PortInUseError: the address cannot be bound.
        StorageError: the data folder or the index file cannot be used.
        TypeError: an argument has another type.
        ValueError: the concurrency mode, or the value of `indexes`, is unknown.
    """
    check(bool, edit=edit)
    check(str, project=project)
    check(Limits, limits=limits)
    check(Callable, now=now)
    control = CONCURRENCY_MODES.get(concurrency_mode)
    if control is None:
        available = ", ".join(CONCURRENCY_MODES)
        raise ValueError(f"unknown concurrency mode {concurrency_mode!r}; available: {available}")
    policy = IndexPolicy(indexes, None if index_file is None else Path(index_file))
    listener = listen(host, port)
    try:
        storage = Storage(None if data_dir is None else Path(data_dir), now=now)
    except StorageError:
        listener.close()
        raise
    emulator = Emulator(
        *(listener, host, storage, control, policy, project, limits),
        edit=edit,
        exports=None if exports is None else Path(exports),
    )
    _log.info("Datastore emulator listening on %s", emulator.host)
    return emulator
