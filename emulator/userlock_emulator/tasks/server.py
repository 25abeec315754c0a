"""Start and stop of the emulator: the socket, the threads, the settings."""

import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from userlock_emulator.arguments import check
from userlock_emulator.exports import tasks_variables
from userlock_emulator.limits import DEFAULTS, Limits
from userlock_emulator.port.reply import Reply
from userlock_emulator.port.server import Port, Running, address_of
from userlock_emulator.port.status import RpcError, StorageError
from userlock_emulator.sockets import listen
from userlock_emulator.tasks import betas, protos
from userlock_emulator.tasks.batches import Batches
from userlock_emulator.tasks.betas import BETAS
from userlock_emulator.tasks.clock import ManualClock, wall_clock_microseconds
from userlock_emulator.tasks.control import CERTIFICATES, KEY_SET, Control
from userlock_emulator.tasks.dispatch import Dispatcher
from userlock_emulator.tasks.names import location_of
from userlock_emulator.tasks.protos import Message
from userlock_emulator.tasks.queues import Queues, described_queue
from userlock_emulator.tasks.rest import Rest
from userlock_emulator.tasks.rpcs import MOST_SECONDS, OPERATIONS, SERVICE, services
from userlock_emulator.tasks.storage import Storage
from userlock_emulator.tasks.targets import Targets
from userlock_emulator.tasks.tasks import Tasks
from userlock_emulator.tasks.tokens import GOOGLE, Signer

_log = logging.getLogger(__name__)


class CloudTasks(Running):
    """A running Cloud Tasks emulator, and a context manager that stops it.

    Created by `start()`.

    Attributes:
        faults: makes deliveries and RPCs go wrong, on demand.
    """

    def __init__(
        self,
        listener: socket.socket,
        host: str,
        storage: Storage,
        signer: Signer,
        dispatcher: Dispatcher,
        queues: Iterable[Message],
        limits: Limits,
        now: Callable[[], int],
    ) -> None:
        self._host = address_of(listener)
        self._storage = storage
        self._dispatcher = dispatcher
        self._first_queues = tuple(queues)
        self.faults = dispatcher.faults
        self._queues = Queues(storage, now, dispatcher.look_again)
        self._tasks = Tasks(storage, now, dispatcher)
        served = services(
            self._queues, self._tasks, Batches(storage, now, self._tasks), self.faults
        )
        rests = [Rest("v2", served[SERVICE] | served[OPERATIONS])]
        for beta in BETAS:
            served[beta.service] = betas.rpcs(beta, served[SERVICE])
            rests.append(Rest(beta.name, served[beta.service]))
        self._rests = {rest.prefix: rest for rest in rests}
        self._control = Control(self.faults, signer, self._host, self.reset)
        self._create_queues()
        dispatcher.start()
        self._port = Port(
            "tasks",
            listener,
            host,
            served,
            self._answer,
            lambda path: self._rest_of(path) is not None,
            limits,
            MOST_SECONDS,
        )

    def _answer(self, method: str, path: str, content_type: str, body: bytes) -> Reply:
        rest = self._rest_of(path)
        return (rest or self._control).answer(method, path, body)

    def _rest_of(self, path: str) -> Rest | None:
        return self._rests.get(path[: path.find("/", 1) + 1])

    def _create_queues(self) -> None:
        for queue in self._first_queues:
            with self._storage.look() as tables:
                exists = tables.queue(queue.name) is not None
            if not exists:
                parent = location_of(queue.name)
                self._queues.create(protos.CreateQueueRequest(parent=parent, queue=queue))

    @property
    def host(self) -> str:
        """Return the address, "127.0.0.1:PORT", for gRPC and for HTTP."""
        return self._host

    @property
    def env(self) -> dict[str, str]:
        """Return the environment variables that direct applications here."""
        return tasks_variables(self._host)

    @property
    def jwks_url(self) -> str:
        """Return the URL of the keys that sign OIDC tokens, as a JSON Web Key Set."""
        return f"http://{self._host}{KEY_SET}"

    @property
    def certs_url(self) -> str:
        """Return the URL of the same keys as certificates: for `google.oauth2.id_token`."""
        return f"http://{self._host}{CERTIFICATES}"

    @property
    def in_flight(self) -> int:
        """Return the number of requests that targets have not answered yet."""
        return self._dispatcher.in_flight

    @property
    def next_time(self) -> int | None:
        """Return the time of the next event, in microseconds of its clock; None for never.

        That is an attempt, or the deadline of one in flight.
        """
        return self._dispatcher.next_time

    def wake(self) -> None:
        """Look at the clock again: for a clock that is moved by hand, but is no `ManualClock`."""
        self._dispatcher.look_again()

    def wait_idle(self, timeout_seconds: float = 10.0) -> None:
        """Wait until no attempt is in flight, and none can begin at this time of its clock.

        Raises:
            TimeoutError: it took longer.
        """
        self._dispatcher.wait_idle(timeout_seconds)

    def wait_empty(self, queue: str | None = None, timeout_seconds: float = 10.0) -> None:
        """Wait until a queue, or all queues, have no tasks.

        Args:
            queue: the full name of the queue.

        Raises:
            TimeoutError: it took longer.
        """
        self._dispatcher.wait_until(timeout_seconds, lambda: self._tasks.count(queue) == 0)

    def reset(self) -> None:
        """Delete all queues, tasks and used names, cut off attempts, remove all faults.

        Queues that `start` was given are created again.
        """
        self.faults.clear()
        with self._storage.change() as tables:
            tables.clear()
        self._dispatcher.drop_all()
        self._create_queues()
        self._dispatcher.look_again()

    def stop(self, grace_seconds: float = 1.0) -> None:
        """Stop listening and dispatching, finish the RPCs in progress, close the data file.

        Attempts in flight are cut off; with a data folder they are repeated after the next start.
        A second call does nothing. Neither does a call in a process forked from the serving one.
        """
        self._port.stop(
            grace_seconds,
            release=self.faults.clear,
            give_up=self._dispatcher.stop,
            close=self._storage.close,
        )


def start(
    port: int = 0,
    data_dir: str | Path | None = None,
    *,
    host: str = "127.0.0.1",
    queues: Iterable[str] = (),
    app_engine: str | Mapping[str, str] = "",
    anywhere: bool = False,
    issuer: str = GOOGLE,
    limits: Limits = DEFAULTS,
    now: Callable[[], int] = wall_clock_microseconds,
) -> CloudTasks:
    """Start a Cloud Tasks emulator inside this process, in threads of its own.

    Args:
        port: the port to listen on; 0 picks a free one (see `CloudTasks.host`).
        data_dir: folder for the data file, which survives restarts; None keeps
            everything in memory.
        host: the address to bind. A warning is logged if other machines can reach it.
        queues: full names of queues that exist from the start; after a name may follow settings
            as in `gcloud tasks queues create`: "…/queues/q,max-attempts=3,min-backoff=1s".
        app_engine: "HOST:PORT" of the App Engine services, or that of each service by its
            name; "" stands for those that are not listed.
        anywhere: dispatch to other machines too, not to this one alone.
        issuer: the issuer of OIDC tokens.
        limits: the bounds on clients: connections, threads, times.
        now: the clock, in microseconds since the epoch: a `ManualClock` in tests. Dispatch
            deadlines and outages follow it, too; tokens follow the time of day.

    Returns:
        The emulator, already serving.

    Raises:
        ImportError: google-cloud-tasks is not installed.
        PortInUseError: the address cannot be bound.
        StorageError: the data folder cannot be used.
        TypeError: an argument has another type.
        ValueError: a queue's name or a setting of it is malformed, or the queue was deleted a short
            time ago.
    """
    check(bool, anywhere=anywhere)
    check(str, issuer=issuer)
    check(Limits, limits=limits)
    check(Callable, now=now)
    services_of = {"": app_engine} if isinstance(app_engine, str) else dict(app_engine)
    addresses = {service: address for service, address in services_of.items() if address}
    listener = listen(host, port)
    try:
        storage = Storage(None if data_dir is None else Path(data_dir))
    except StorageError:
        listener.close()
        raise
    signer = Signer(storage, issuer)
    real_time = now is wall_clock_microseconds
    dispatcher = Dispatcher(
        storage, Targets(signer, addresses), now, real_time=real_time, anywhere=anywhere
    )
    try:
        first = [described_queue(text) for text in queues]
        server = CloudTasks(listener, host, storage, signer, dispatcher, first, limits, now)
    except RpcError as error:
        dispatcher.stop()
        storage.close()
        listener.close()
        raise ValueError(error.message) from None
    if isinstance(now, ManualClock):
        now.subscribe(dispatcher.look_again)
    _log.info("Cloud Tasks emulator listening on %s", server.host)
    return server
