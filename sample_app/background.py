"""Work that outlives its request: a thread with its own ndb context and lock scope.

A request's ndb context and lock scope end with the request. A thread has neither, so it opens its
own, as a script would. On Google Cloud use Cloud Tasks instead: a thread ends with its process, and
on Cloud Run it may get no CPU after the response.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import flask
from google.cloud import ndb

import userlock

log = logging.getLogger(__name__)


class Background:
    """Batch work in threads, with the same `client` and `service` as requests."""

    def __init__(
        self,
        app: flask.Flask,
        *,
        client: ndb.Client,
        service: userlock.LockService,
        settings: userlock.Settings,
    ) -> None:
        self._app = app
        self._client = client
        self._service = service
        self._settings = settings
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        app.extensions["background"] = self

    def start(self, what: str, work: Callable[[], object]) -> bool:
        """Begin `work`, unless this process is at work of the same name; return whether it began.

        Waiters for its locks see the name. Errors are logged.
        """
        with self._starting:
            self._threads = [each for each in self._threads if each.is_alive()]
            if any(each.name == what for each in self._threads):
                return False
            # A daemon thread: the process does not wait for it when it stops.
            thread = threading.Thread(target=self._run, args=(what, work), name=what, daemon=True)
            self._threads.append(thread)
            thread.start()
            return True

    def wait(self, seconds: float) -> None:
        """Wait until all work is done, for tests; raise `TimeoutError` if it is not."""
        for thread in self._threads:
            thread.join(seconds)
            if thread.is_alive():
                raise TimeoutError(f"{thread.name} is not done after {seconds:g} s")

    def _run(self, what: str, work: Callable[[], object]) -> None:
        try:
            with (
                self._app.app_context(),
                self._client.context(),
                userlock.scope(
                    self._service, settings=self._settings, priority="batch", request=what
                ),
            ):
                work()
        except Exception:
            log.exception("%s has failed", what)


def background() -> Background:
    """Return the background work of the current app."""
    found: Background = flask.current_app.extensions["background"]
    return found
