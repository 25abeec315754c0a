"""The surroundings of a web request: an ndb context, a lock scope, a priority."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from google.cloud.ndb.context import get_context

import userlock.ndb.model  # noqa: F401  (installs itself in ndb)
from userlock.errors import StaleWriteError
from userlock.lock.lease import Priority
from userlock.lock.scope import current_scope, default_service, defaults, scope
from userlock.lock.service import LockService, check_service
from userlock.ndb import transactions
from userlock.settings import Enforcement, make_settings

log = logging.getLogger(__name__)

#: App Engine takes these away from requests of anybody else. Anywhere else, anybody can send them.
APP_ENGINE_HEADERS = ("X-AppEngine-QueueName", "X-AppEngine-Cron")

#: Set by Google's task queues and schedulers. Whoever sends one waits longer, behind everybody
#: else; so a public service loses at most a worker's time, and may believe them all.
BATCH_HEADERS = (*APP_ENGINE_HEADERS, "X-CloudTasks-QueueName", "X-CloudScheduler")


class RequestScope:
    """Opens what each request of an app has around it. Thread-safe.

    Args:
        client: the `ndb.Client` to open contexts with, or a function that makes it (called
            once in each process, on its first request: gRPC channels do not survive a fork).
            None: the app opens contexts itself.
        service: where locks come from; by default the configured service.
        batch_prefixes: URL paths that begin with one of these are batch work.
        trusted_headers: so are requests with one of these headers.
        enforcement: `raise`, `log` or `off`; by default as configured.
        fencing: whether Datastore refuses stale writes; by default as configured.
        context_options: for `client.context()`, for instance a global cache.

    Attributes:
        service: as given; None for the configured one.
    """

    def __init__(
        self,
        *,
        client: Any = None,
        service: LockService | None = None,
        batch_prefixes: Iterable[str] = (),
        trusted_headers: Iterable[str] = (),
        enforcement: Enforcement | str | None = None,
        fencing: bool | None = None,
        context_options: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(batch_prefixes, str):
            raise TypeError("batch_prefixes must be a list of paths, not one string")
        if isinstance(trusted_headers, str):
            raise TypeError("trusted_headers must be a list of names, not one string")
        self._client = client
        self._made: tuple[int, Any] = (0, None)
        self.service = None if service is None else check_service(service)
        self._batch_prefixes = tuple(batch_prefixes)
        self._trusted_headers = tuple(trusted_headers)
        if _on_app_engine():
            self._trusted_headers += APP_ENGINE_HEADERS
        self._enforcement = None if enforcement is None else Enforcement.of(enforcement)
        self._fencing = fencing
        self._context_options = context_options or {}

    def priority_of(self, path: str, has_header: Callable[[str], bool]) -> Priority:
        """Return a request's priority. Any client may send the header: batch waits longer."""
        if self.is_batch_work(path, has_header) or any(map(has_header, BATCH_HEADERS)):
            return Priority.BATCH
        return Priority.INTERACTIVE

    def is_batch_work(self, path: str, has_header: Callable[[str], bool]) -> bool:
        """Return whether a request may write batch-only models. Its own claims do not count."""
        return path.startswith(self._batch_prefixes) or any(map(has_header, self._trusted_headers))

    def open(self, method: str, path: str, has_header: Callable[[str], bool]) -> ExitStack:
        """Open the context and the scope; closing what this returns releases all locks."""
        with ExitStack() as stack:
            client = self._client_of_this_process()
            # Inside a context that is open already (a test's, or an outer
            # request's) ndb would refuse another one.
            if client is not None and get_context(False) is None:
                stack.enter_context(client.context(**self._context_options))
            opened = stack.enter_context(
                scope(
                    self.service or default_service(),
                    settings=make_settings(
                        defaults.settings,
                        enforcement=self._enforcement,
                        fencing=self._fencing,
                    ),
                    priority=self.priority_of(path, has_header),
                    request=f"{method} {path}",
                )
            )
            opened.batch_work = self.is_batch_work(path, has_header)
            return stack.pop_all()

    def _client_of_this_process(self) -> Any:
        if not callable(self._client):
            return self._client
        made_in, client = self._made
        if made_in != os.getpid():
            client = self._client()
            self._made = os.getpid(), client
        return client


def _on_app_engine() -> bool:
    """Return whether App Engine runs this process. Its runtimes set these variables."""
    return any(os.environ.get(name) for name in ("GAE_APPLICATION", "GAE_ENV"))


def finish_writes() -> StaleWriteError | None:
    """Have the writes land that were begun under locks which are still held, or under none.

    Called before an answer goes out, so that a failed write does not end in a
    success answer.
    """
    current = current_scope()
    try:
        if current is not None:
            current.finish_writes()
        transactions.finish_writes()
    except StaleWriteError as error:
        return error
    return None


def close(stack: ExitStack, error: BaseException | None, path: str) -> None:
    """Close what `RequestScope.open` has opened, when the answer is decided."""
    try:
        stack.__exit__(
            None if error is None else type(error),
            error,
            None if error is None else error.__traceback__,
        )
    except Exception:
        # Raised here, the answer would be lost with the rest.
        log.exception("a write of %s failed after its answer", path)
