"""The execution of operations on real servers."""

from __future__ import annotations

import contextlib
import copy
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from google.api_core import exceptions as google_errors
from google.cloud import ndb
from pymemcache.client.base import Client as MemcacheClient

import userlock
from sample_app.stack.ports import LOOPBACK
from tests.chaos import corners
from tests.chaos.desk import Desk
from tests.chaos.garden import Garden
from tests.chaos.jobs import Jobs
from tests.chaos.planting import tend
from tests.chaos.programs import Accident, Guard, Operation, Way
from tests.chaos.record import Recorder
from tests.chaos.request import CACHE_TROUBLE, LEASE_SECONDS, Request
from tests.chaos.staging import stage_jobs
from userlock.lock.scope import current, current_scope
from userlock.ndb.owners import current_namespace

_PAST_LEASE_SECONDS = 1.2
#: Includes the possible delay of memcached's expiry.
_PAST_RECORD_SECONDS = LEASE_SECONDS + 5.0
_AFTER_ERROR_SECONDS = 0.05
_FLUSH_SECONDS = 0.5

#: The time within which a stopped server continues, and then executes pending requests.
_LATE_SECONDS = 6.0


_ENFORCEMENT = {
    Guard.LOGGED_LOCK: userlock.Enforcement.LOG,
    Guard.LOGGED: userlock.Enforcement.LOG,
    Guard.SUPPRESSED: userlock.Enforcement.OFF,
}


class Worker:
    """The executor of operations, one after the other. Implements `request.RequestScope`.

    Args:
        memcached: two clients of ndb's global cache: for this thread, and for a concurrent one.
        homes: the port of each lock's lease server. Empty: Datastore has the leases.
    """

    def __init__(
        self,
        client: ndb.Client,
        service: userlock.LockService,
        memcached: tuple[MemcacheClient, MemcacheClient],
        recorder: Recorder,
        jobs: Jobs,
        garden: Garden,
        desk: Desk,
        *,
        homes: Mapping[str, int],
        flush: str,
        fencing: bool,
    ) -> None:
        self._client = client
        self._service = service
        self._cache, self._cache_beside = map(ndb.MemcacheCache, memcached)
        self._recorder = recorder
        self.jobs = jobs
        self.garden = garden
        self.desk = desk
        self._homes = homes
        self._flush = flush
        self._fencing = fencing

    def carry_out(self, operation: Operation) -> None:
        """Execute one operation. Expected errors are recorded; others are raised."""
        settings = userlock.Settings(
            enforcement=_ENFORCEMENT.get(operation.guard, userlock.Enforcement.RAISE),
            fencing=self._fencing,
        )
        ended = "done"
        try:
            with (
                self._client.context(global_cache=self._cache, namespace=operation.namespace),
                userlock.scope(
                    self._service,
                    settings=settings,
                    priority="batch" if operation.batch else "interactive",
                ),
            ):
                _run(Request(operation, self._recorder, self))
        except (userlock.LockError, google_errors.GoogleAPIError, *CACHE_TROUBLE) as error:
            # The operation was not allowed to begin, could not read, or has not looked at a write.
            ended = type(error).__name__
        if ended != "done":
            time.sleep(_AFTER_ERROR_SECONDS)  # no client retries at once
        kind = f"{operation.way.name}{' in a transaction' if operation.in_transaction else ''}"
        self._recorder.note("operation", name=operation.name, kind=kind, ended=ended)

    @contextlib.contextmanager
    def beside(self, action: Callable[[], None]) -> Iterator[None]:
        """Run the action in another thread meanwhile, with an ndb context of its own and the same
        scope."""
        scope, namespace = current_scope(), current_namespace()

        def act() -> None:
            current.set(scope)
            with self._client.context(global_cache=self._cache_beside, namespace=namespace):
                action()

        with ThreadPoolExecutor(1) as threads:
            acting = threads.submit(act)
            yield
            acting.result()

    def befall(self, accident: Accident, user: str) -> None:
        """Cause an accident, or none."""
        if accident is Accident.PAST_LEASE:
            time.sleep(_PAST_LEASE_SECONDS)
        elif accident is Accident.PAST_RECORD:
            time.sleep(_PAST_RECORD_SECONDS)
        elif accident in (Accident.BROKEN, Accident.EVICTED):
            self._lose(accident, user)

    def _lose(self, accident: Accident, user: str) -> None:
        """Lose a lease, now or, with a stopped server, later."""
        if accident is Accident.BROKEN:
            kind, locks = "broken", [user]
        elif user in self._homes:
            mine = self._homes[user]
            kind, locks = "flushed", [lock for lock, home in self._homes.items() if home == mine]
        else:
            return  # nobody flushes Datastore
        with self._recorder.span(kind, locks=locks):
            try:
                if accident is Accident.BROKEN:
                    self._service.break_lock(user)
                else:
                    _flush(mine, self._flush)
            except (userlock.LockError, OSError):
                self._recorder.note("late", kind=kind, locks=locks, lasts=_LATE_SECONDS)


def _flush(port: int, command: str) -> None:
    """Have a lease server lose its data. `OSError`: it has not confirmed that."""
    with socket.create_connection((LOOPBACK, port), timeout=_FLUSH_SECONDS) as connection:
        connection.sendall(command.encode())
        if b"OK" not in connection.recv(64):
            raise ConnectionError("the server has not confirmed the flush")


def _run(request: Request) -> None:
    operation = request.operation
    way = WAYS[operation.way]
    if operation.way in (
        Way.LOCK_INSIDE,
        Way.DROPPED,
        Way.REQUEST,
    ):  # these take the lock themselves
        way(request)
        return
    with request.locked():
        if operation.in_transaction:
            request.transact(lambda: way(request))
        else:
            way(request)


def _put(request: Request) -> None:
    for name, entity in request.read():
        changed, write = request.changed(name, entity)
        request.report(write, changed.put)


def _put_twice(request: Request) -> None:
    for name, entity in request.read():
        changed, write = request.changed(name, entity)
        if request.report(write, changed.put):
            _, again = request.changed(name, changed)
            request.report(again, changed.put)


def _put_together(request: Request) -> None:
    """Put several together. Each gets its own outcome."""
    waiting = []
    for name, entity in request.read():
        changed, write = request.changed(name, entity)
        waiting.append(request.begun(write, changed.put_async))
    for wait in waiting:
        wait()


def _delete(request: Request) -> None:
    for name, entity in request.read():
        if entity is not None:
            gone = request.write(name, entity.last, deletes=True)
            request.report(gone, entity.key.delete)


def _put_and_yield(request: Request) -> None:
    """Run a long job: each step reads again, and yields to waiters."""
    operation = request.operation
    for name in operation.entities:
        for tenure in request.tenures:
            tenure.yield_to_waiters(wait_timeout=operation.wait)
        entity = request.read_one(name)
        time.sleep(operation.pause)
        changed, write = request.changed(name, entity)
        request.report(write, changed.put)


def _put_entry(request: Request) -> None:
    entry, write = request.entry()
    request.report(write, entry.put)


# --- in transactions ------------------------------------------------------------------------


def _change_under_lock(request: Request) -> None:
    def step() -> None:
        with request.locked():
            _put(request)

    request.transact(step)


def _change_what_was_read_before(request: Request) -> None:
    found = request.read()

    def step() -> None:
        # Another attempt begins with the first state, not with the result of the previous attempt.
        for name, entity in found:
            changed, write = request.changed(name, copy.deepcopy(entity))
            request.report(write, changed.put)

    request.transact(step)


def _change_and_enter(request: Request) -> None:
    _put(request)
    _put_entry(request)


WAYS: Mapping[Way, Callable[[Request], None]] = {
    Way.PUT: _put,
    Way.BATCH: _put_together,
    Way.TWICE: _put_twice,
    Way.DELETE: _delete,
    Way.ENTRY: _put_entry,
    Way.JOB: _put_and_yield,
    Way.TRANSACTION: lambda request: request.transact(lambda: _put(request)),
    Way.LOCK_INSIDE: _change_under_lock,
    Way.READ_BEFORE: _change_what_was_read_before,
    Way.DELETE_IN_TRANSACTION: lambda request: request.transact(lambda: _delete(request)),
    Way.ENTRY_IN_TRANSACTION: lambda request: request.transact(lambda: _change_and_enter(request)),
    Way.STAGE: stage_jobs,
    Way.REQUEST: lambda request: request.surroundings.desk.send(request.operation),
    Way.TREE: tend,
    **corners.WAYS,
}
