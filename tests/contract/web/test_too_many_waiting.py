"""Test the bound of waiters that a request's scope has. The answer: `test_integrations`."""

from __future__ import annotations

from typing import Any

import pytest

import userlock
from userlock.contrib.request_scope import RequestScope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


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
