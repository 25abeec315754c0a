"""Test what the scope of a request is given: priority by headers, and a bound of waiters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from google.cloud import ndb
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.datastructures import Headers

import userlock
from userlock.contrib.request_scope import APP_ENGINE_HEADERS, BATCH_HEADERS, RequestScope
from userlock.lock.lease import Priority
from userlock.lock.scope import LockScope
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
def test_only_headers_of_task_queues_give_batch_priority(sent: Headers) -> None:
    known = any(name in sent for name in BATCH_HEADERS)
    found, is_batch_work = REQUEST_SCOPE.priority_of("/answers", sent.__contains__)
    assert found is (Priority.BATCH if known else Priority.INTERACTIVE)
    assert not is_batch_work


class Tally(userlock.UserModel):
    """Counted under its user's lock."""

    _lock_id_from_key = userlock.key_id
    count = ndb.IntegerProperty(default=0)


#: Ways to take ann's lock.
WAYS: list[Callable[[], AbstractContextManager[Any]]] = [
    lambda: userlock.global_lock("ann"),
    lambda: userlock.global_lock("ann", priority=the_scope().priority),
    lambda: userlock.global_locks(["ann", "bob"]),
    lambda: userlock.acquire_lock("ann"),
    lambda: userlock.fetch_under_user_write_lock(Tally(id="ann")),
]


def the_scope() -> LockScope:
    scope = userlock.current_scope()
    assert scope is not None
    return scope


#: Wait and lease of an interactive lock and of batch work, by the policy below.
INTERACTIVE, BATCH = (3, 20.0), (70, 150.0)


class TestTerms:
    """Test that a header that anybody can send lowers the rank, and lengthens nothing."""

    POLICY = userlock.LockPolicy(
        interactive=userlock.PriorityPolicy(wait_timeout=3, lock_timeout=20),
        batch=userlock.PriorityPolicy(wait_timeout=70, lock_timeout=200, heartbeat=True),
        heartbeat_lock_timeout=150,
    )

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
        for take in WAYS:
            sent = Headers({header: "x"} if header else {})
            scope = RequestScope(service=service, **options)
            with scope.open("POST", path, sent.__contains__), take():
                lease = the_scope().held["ann"]._lease
            blocking = service.acquire("ann", lock_timeout=1000)
            timed_out = pytest.raises(userlock.LockTimeout)
            with scope.open("POST", path, sent.__contains__), timed_out as caught, take():
                pass
            service.release(blocking)
            found.add((lease.priority, round(caught.value.waited_seconds), lease.ttl_seconds))
        return found

    @pytest.mark.parametrize(
        ("platform", "options", "path", "header", "expected"),
        [
            *(("", {}, "/answers", header, ("batch", *INTERACTIVE)) for header in BATCH_HEADERS),
            ("", {}, "/answers", "", ("interactive", *INTERACTIVE)),
            ("standard", {}, "/answers", "X-CloudTasks-QueueName", ("batch", *INTERACTIVE)),
            # The controls: sources that are proven have the wait and the lease of batch.
            *(
                ("", {"batch_prefixes": ["/tasks/"]}, "/tasks/nightly", header, ("batch", *BATCH))
                for header in ("", "X-CloudTasks-QueueName")
            ),
            ("", {"trusted_headers": ["X-Mine"]}, "/answers", "X-Mine", ("batch", *BATCH)),
            ("standard", {}, "/answers", APP_ENGINE_HEADERS[0], ("batch", *BATCH)),
        ],
    )
    def test_what_a_request_gets(
        self,
        service: userlock.LockService,
        monkeypatch: pytest.MonkeyPatch,
        platform: str,
        options: dict[str, Any],
        path: str,
        header: str,
        expected: tuple[Any, ...],
    ) -> None:
        if platform:
            monkeypatch.setenv("GAE_ENV", platform)
        assert self.terms(service, options, path, header) == {expected}

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


# --- the bound of waiters ------------------------------------------------------------------------


def test_the_policy_of_the_service_comes_before_the_default(
    store: MemoryStore, clock: ManualClock
) -> None:
    policy = userlock.LockPolicy(interactive=userlock.PriorityPolicy(max_waiting=0))
    service = userlock.LockService(store, clock=clock, policy=policy)
    service.acquire("ann")
    with (
        RequestScope(service=service).open("GET", "/", lambda name: False),
        pytest.raises(userlock.TooManyWaiting),
    ):
        userlock.acquire_lock("ann")


def test_a_scope_inside_a_request_has_its_bound(service: userlock.LockService) -> None:
    service.acquire("ann")
    scope = RequestScope(service=service, max_waiting=0)
    rejected = pytest.raises(userlock.TooManyWaiting)
    with scope.open("GET", "/", lambda name: False), userlock.scope(service), rejected:
        userlock.acquire_lock("ann")
    with userlock.scope(service), pytest.raises(userlock.LockTimeout) as caught:
        userlock.acquire_lock("ann", wait_timeout=0.1)
    assert type(caught.value) is userlock.LockTimeout, "the control: outside there is none"


@pytest.mark.parametrize(("most", "of_batch"), [(5, 3), (2, 1), (1, 1), (0, 0), (None, None)])
def test_batch_leaves_places_to_interactive_requests(
    service: userlock.LockService, most: int | None, of_batch: int | None
) -> None:
    scope = RequestScope(service=service, batch_prefixes=["/tasks/"], max_waiting=most)
    for path_, expected in (("/", most), ("/tasks/nightly", of_batch)):
        with scope.open("GET", path_, lambda name: False):
            current = userlock.current_scope()
            assert current is not None
            assert current.max_waiting == expected


@pytest.mark.parametrize("wrong", [-1, 2.5, "5"])
def test_a_bound_that_is_none_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_waiting must be"):
        RequestScope(max_waiting=wrong)
