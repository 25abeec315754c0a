"""Test headers that set a request's priority: their sender waits behind others, gains nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import flask
import pytest
from google.cloud import ndb
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.datastructures import Headers

import userlock
from userlock.contrib.flask import UserLock
from userlock.contrib.request_scope import APP_ENGINE_HEADERS, BATCH_HEADERS, RequestScope
from userlock.lock.lease import Priority
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim
from userlock.waits import run

_LOOK_ALIKES = [
    *("Priority", "X-Priority", "X-Userlock-Priority", "Userlock-Priority", "X-AppEngine-TaskName"),
    *("X_AppEngine_QueueName", "X-CloudTasks-QueueName-", "X-Forwarded-For", "Authorization"),
]
_names = st.sampled_from([*BATCH_HEADERS, *_LOOK_ALIKES]).flatmap(
    lambda name: st.sampled_from([name, name.lower(), name.upper()])
)

_values = st.sampled_from(["", "interactive", "batch", "u=0", "true", "false", "0", "default"])
headers = st.lists(st.tuples(_names, _values), max_size=6).map(Headers)

REQUEST_SCOPE = RequestScope(batch_prefixes=["/tasks/"])


@given(headers)
def test_no_header_makes_batch_work_interactive(sent: Headers) -> None:
    assert REQUEST_SCOPE.priority_of("/tasks/nightly", sent.__contains__) == (Priority.BATCH, True)


@given(headers)
def test_only_headers_of_task_queues_give_batch_priority(sent: Headers) -> None:
    known = any(name in sent for name in BATCH_HEADERS)
    found, is_batch_work = REQUEST_SCOPE.priority_of("/answers", sent.__contains__)
    assert found is (Priority.BATCH if known else Priority.INTERACTIVE)
    assert not is_batch_work


class Tally(userlock.UserModel):
    """Counted under its user's lock."""

    _lock_id_from_key = userlock.key_id
    count = ndb.IntegerProperty(default=0)


@pytest.fixture
def app(ndb_client: ndb.Client, service: userlock.LockService) -> flask.Flask:
    app = flask.Flask(__name__)
    UserLock(app, client=ndb_client, service=service, inspector=lambda request: False)

    @app.post("/locked")
    def locked() -> str:
        with userlock.global_lock("ann", wait_timeout=0.5):
            return "fine"

    @app.post("/unlocked")
    def unlocked() -> str:
        Tally(id="ann").put()
        return "never"

    return app


def test_one_string_of_headers_is_refused() -> None:
    with pytest.raises(TypeError, match="trusted_headers must be a list of names"):
        RequestScope(trusted_headers="X-CloudTasks-QueueName")


def took(lock: userlock.HeldLock) -> tuple[str, float]:
    """Return the rank and the length of a lease."""
    return lock._lease.priority, lock._lease.ttl_seconds


#: Ways to take a lock. Each returns the rank and the lease.
WAYS: dict[str, Callable[[], tuple[str, float]]] = {}


def way(function: Callable[[], tuple[str, float]]) -> Callable[[], tuple[str, float]]:
    WAYS[function.__name__] = function
    return function


@way
def global_lock() -> tuple[str, float]:
    with userlock.global_lock("ann") as lock:
        return took(lock)


@way
def global_lock_of_the_scopes_priority() -> tuple[str, float]:
    scope = userlock.current_scope()
    assert scope is not None
    with userlock.global_lock("ann", priority=scope.priority) as lock:
        return took(lock)


@way
def global_locks() -> tuple[str, float]:
    with userlock.global_locks(["ann", "bob"]) as (lock, _):
        return took(lock)


@way
def acquire_lock() -> tuple[str, float]:
    with userlock.acquire_lock("ann") as lock:
        return took(lock)


@way
def fetch_under_user_write_lock() -> tuple[str, float]:
    with userlock.fetch_under_user_write_lock(Tally(id="ann")):
        scope = userlock.current_scope()
        assert scope is not None
        return took(scope.held["ann"])


class TestTerms:
    """Test that a header that anybody can send lowers the rank, and lengthens nothing."""

    POLICY = userlock.LockPolicy(
        interactive=userlock.PriorityPolicy(wait_timeout=3, lock_timeout=20),
        batch=userlock.PriorityPolicy(wait_timeout=70, lock_timeout=200, heartbeat=True),
        heartbeat_lock_timeout=150,
    )
    INTERACTIVE, BATCH = (3, 20.0), (70, 150.0)

    @pytest.fixture
    def service(self, store: MemoryStore, clock: ManualClock) -> userlock.LockService:
        return userlock.LockService(store, clock=clock, policy=self.POLICY)

    @pytest.fixture(autouse=True)
    def context(self, ndb_client: ndb.Client) -> Iterator[None]:
        with ndb_client.context():
            yield

    def terms(
        self, service: userlock.LockService, options: dict[str, Any], path: str, header: str
    ) -> set[tuple[str, int, float]]:
        """Return rank, wait and lease that a request gets, in each way to take a lock."""
        found = set()
        for take in WAYS.values():
            sent = Headers({header: "x"} if header else {})
            scope = RequestScope(service=service, **options)
            with scope.open("POST", path, sent.__contains__):
                rank, lease = take()
            blocking = service.acquire("ann", lock_timeout=1000)
            timed_out = pytest.raises(userlock.LockTimeout)
            with scope.open("POST", path, sent.__contains__), timed_out as caught:
                take()
            service.release(blocking)
            found.add((rank, round(caught.value.waited_seconds), lease))
        return found

    @pytest.mark.parametrize("header", BATCH_HEADERS)
    def test_a_forged_header(self, service: userlock.LockService, header: str) -> None:
        found = self.terms(service, {}, "/answers", header)
        assert found == {("batch", *self.INTERACTIVE)}

    def test_no_header(self, service: userlock.LockService) -> None:
        assert self.terms(service, {}, "/answers", "") == {("interactive", *self.INTERACTIVE)}

    @pytest.mark.parametrize(
        ("options", "path", "header"),
        [
            ({"batch_prefixes": ["/tasks/"]}, "/tasks/nightly", ""),
            ({"batch_prefixes": ["/tasks/"]}, "/tasks/nightly", "X-CloudTasks-QueueName"),
            ({"trusted_headers": ["X-Mine"]}, "/answers", "X-Mine"),
        ],
    )
    def test_a_proven_source(
        self, service: userlock.LockService, options: dict[str, Any], path: str, header: str
    ) -> None:
        """The control: the wait and the lease of batch."""
        assert self.terms(service, options, path, header) == {("batch", *self.BATCH)}

    @pytest.mark.parametrize(
        ("header", "expected"),
        [(APP_ENGINE_HEADERS[0], BATCH), ("X-CloudTasks-QueueName", INTERACTIVE)],
    )
    def test_on_app_engine(
        self,
        service: userlock.LockService,
        monkeypatch: pytest.MonkeyPatch,
        header: str,
        expected: tuple[int, float],
    ) -> None:
        monkeypatch.setenv("GAE_ENV", "standard")
        assert self.terms(service, {}, "/answers", header) == {("batch", *expected)}

    def test_taking_a_yielded_lock_back(
        self, service: userlock.LockService, clock: ManualClock
    ) -> None:
        """An interactive waiter gets it, and keeps it for longer than the wait."""
        sent = Headers({"X-CloudTasks-QueueName": "x"})
        waiter = make_claim("ann", ttl_seconds=1000)

        def takes_it() -> None:
            record = service.look("ann")
            assert record is not None
            assert run(service.protocol.claim, waiter, record, passing=False) is not None

        with (
            RequestScope(service=service).open("POST", "/answers", sent.__contains__),
            userlock.global_lock("ann") as lock,
        ):
            run(service.protocol.join, waiter)
            clock.after(0.0001, takes_it)
            started = clock.now()
            with pytest.raises(userlock.LockTimeout):
                lock.yield_to_waiters()
            assert clock.now() - started == pytest.approx(3, abs=0.1)
