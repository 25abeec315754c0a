"""Requests with idempotency keys: senders of one key, and the server that completes what is left.

A request stores an entry in a phase, charges a provider, and answers with the id of the entry.
Senders in all processes share the keys, each of which is there in both namespaces. Every second one
is left to its senders.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from random import Random
from typing import Any

from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
from tests.chaos.jobs import CLAIM_SECONDS, Jobs
from tests.chaos.models import Entry, user_key
from tests.chaos.programs import Operation, in_name, one_of
from tests.chaos.record import Outcome, Recorder, Write
from tests.chaos.request import CACHE_TROUBLE, error_of, outcome_of
from userlock.errors import FlowTakenOver, RequestRunning
from userlock.idempotency import Flow, Flows, Request
from userlock.ndb.owners import current_namespace

#: The errors after which a client sends its request again, or leaves it to the server.
_EXPECTED = (
    RequestRunning,
    FlowTakenOver,
    userlock.LockError,
    userlock.WriteViolation,
    userlock.StaleWriteError,
    userlock.CommitInDoubt,
    google_errors.GoogleAPIError,
    *CACHE_TROUBLE,
)
#: The operations of a thread that use the same keys: each key has several senders.
_OF_A_KEY = 50
#: The time between an entry and its answer, and within its transaction, in seconds. The longest are
#: beyond the claim, and the lease.
_LASTS = {0.0: 40, 0.03: 20, 0.3: 5, 1.2: 2, CLAIM_SECONDS + 0.5: 1}
#: Longer than any wall clock is wrong: an answer that is no longer kept is made again.
_KEEP_HOURS = 14 * 24.0
#: The server completes requests that are older, in seconds.
_LEFT_SECONDS = 1.5
_IDLE_SECONDS = 1.0
_MOST_ROUNDS = 5


class Desk:
    """The requests of a process."""

    def __init__(
        self,
        client: ndb.Client,
        service: userlock.LockService,
        recorder: Recorder,
        jobs: Jobs,
        name: str,
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._name = name
        self._numbers = itertools.count(1)
        self._sleep = time.sleep
        self._flows = Flows(
            service=service,
            client=client,
            keep_hours=_KEEP_HOURS,
            clock=jobs.clock,
            claim_seconds=CLAIM_SECONDS,
        )
        self._flows.register("enter", self._enter)

    def send(self, operation: Operation) -> None:
        """Send a request of the first of the users."""
        number = int(operation.name.partition("@")[0].rpartition(".")[2])
        key = number // _OF_A_KEY
        request = Request(operation.users[0], f"key-{key}", "enter", {}, completable=bool(key % 2))
        try:
            answer = self._flows.run(
                request, wait_timeout=operation.wait, refuse=not operation.variant % 4
            )
        except _EXPECTED as error:
            self._recorder.note("request", outcome=type(error).__name__)
        else:
            outcome = "replayed" if answer.replayed else "done"
            self._answered(request._replace(namespace=operation.namespace), answer, outcome)

    def _answered(self, request: Request, answer: Any, outcome: str) -> None:
        name = _name_of(request.user_id, request.key, request.namespace)
        self._recorder.note("request", outcome=outcome, request=name, entry=answer.value)

    def _enter(self, flow: Flow) -> Any:
        namespace = current_namespace()
        operation = in_name(f"{self._name}.entered.{next(self._numbers)}", namespace)
        name = _name_of(flow.user_id, flow.key, namespace)
        random = Random(operation)
        attempted: list[Write] = []
        numbers = itertools.count(1)

        def enter() -> str:
            for write in attempted:
                self._recorder.ended(write, Outcome.REFUSED)
            attempted.clear()
            number = next(numbers)
            write = Write(
                f"{operation}.{number}",
                operation,
                None,
                before=None,
                together=f"{operation}/{number}",
            )
            attempted.append(write)
            self._recorder.about_to(write)
            self._recorder.note("entered", id=write.id, request=name)
            Entry(parent=user_key(flow.user_id), write=write.id).put()
            self._sleep(one_of(random, _LASTS))
            return write.id

        entered: list[Any] = []
        error = error_of(lambda: entered.append(flow.phase("enter", enter)))
        for write in attempted:
            self._recorder.ended(write, outcome_of(error), error)
        if error is not None:
            raise error

        def charge(key: str) -> str:
            self._recorder.note("charged", key=key, request=name)
            self._sleep(one_of(random, _LASTS))
            return key

        flow.external("charge", charge)
        return entered[0]

    # --- the server -------------------------------------------------------------------------

    def complete(self, stopped: Callable[[], bool]) -> None:
        """Complete the requests that are left, again and again."""
        while not stopped():
            time.sleep(_IDLE_SECONDS)
            try:
                self._complete(stopped, _LEFT_SECONDS)
            except google_errors.GoogleAPIError as error:
                self._recorder.note("request", outcome=type(error).__name__)

    def _complete(self, stopped: Callable[[], bool], older_than: float) -> int:
        """Complete requests; return the number of those that are left."""
        left = 0
        with self._client.context():
            for request, answer in self._flows.complete(older_than=older_than):
                if answer is None:
                    left += 1
                else:
                    self._answered(request, answer, "completed")
                if stopped():
                    break
        return left

    def settle(self) -> None:
        """Complete all requests that are left."""
        self._sleep = lambda _: None
        for _ in range(_MOST_ROUNDS):
            if not self._complete(lambda: False, 0.0):
                return


def _name_of(user: str, key: str, namespace: str) -> str:
    return in_name(f"{user}/{key}", namespace)
