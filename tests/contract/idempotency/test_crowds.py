"""One user's requests, wherever they wait, leave threads of the server to others."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.idempotency.apps import APPS, View
from tests.waiting import wait_until
from userlock.idempotency import Flow
from userlock.stores import MemoryStore

#: So many requests of one user come while the first one runs.
MANY = 12


class Held:
    """Hold a user's requests until all may go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.inside = 0
        self._mutex = threading.Lock()

    def wait(self, *_: object) -> str:
        with self._mutex:
            self.inside += 1
        assert self.go_on.wait(60)
        return "fine"


def in_a_phase(held: Held, flow: Flow) -> Any:
    return flow.phase("wait", held.wait)


def in_a_call(held: Held, flow: Flow) -> Any:
    return flow.external("wait", held.wait, timeout=60)


class Site:
    """A site whose requests of `ann` do not end; those of others do."""

    def __init__(self, kind: str, wait: Callable[[Held, Flow], Any], **options: Any) -> None:
        self.service = options["service"]
        self.held = Held()
        self.stack = contextlib.ExitStack()
        self.pool = self.stack.enter_context(ThreadPoolExecutor(MANY + 1))
        self.stack.callback(self.held.go_on.set)
        serve = lambda flow: wait(self.held, flow) if flow.user_id == "ann" else "fine"  # noqa: E731
        open_app = contextlib.contextmanager(APPS[kind])
        self._send = self.stack.enter_context(open_app({"work": View(serve)}, **options))

    def send(self, user: str, key: str) -> int:
        return self._send("work", b"", key=key, user=user)[0]

    def come(self, *, equal: bool) -> list[Future[int]]:
        """Send many requests of ann's, by one key or each by its own, after the first is inside."""

        def send(number: int) -> Future[int]:
            return self.pool.submit(self.send, "ann", "key" if equal else f"key-{number}")

        first = send(0)
        wait_until(lambda: self.held.inside)
        return [first, *(send(number) for number in range(1, MANY))]


@pytest.fixture(params=APPS)
def open_site(request: pytest.FixtureRequest, ndb_client: ndb.Client) -> Iterator[Any]:
    service = userlock.LockService(MemoryStore())
    with contextlib.ExitStack() as stack:

        def open_(wait: Callable[[Held, Flow], Any], **options: Any) -> Site:
            site = Site(request.param, wait, client=ndb_client, service=service, **options)
            stack.enter_context(site.stack)
            return site

        yield open_


#: What the first one is in; whether the others have its key; how many go on at most, and how the
#: others are refused.
PLACES = {
    "the lock, equal": (in_a_phase, True, 6, {429}),
    "the lock": (in_a_phase, False, 6, {429}),
    "an equal one's call": (in_a_call, True, 5, {409, 429}),
    "calls": (in_a_call, False, 6, {429}),
}


@pytest.mark.parametrize("place", PLACES)
def test_one_user_occupies_so_many_threads(open_site: Any, place: str) -> None:
    wait, equal, most, refusals = PLACES[place]
    site = open_site(wait)
    coming = site.come(equal=equal)
    wait_until(lambda: sum(each.done() for each in coming) >= MANY - most)
    assert site.send("bob", "key") == 200
    refused = [each.result() for each in coming if each.done()]
    assert len(refused) - (MANY - most) in (0, 1), "one fewer, if all came while nobody had it"
    assert set(refused) <= refusals
    site.held.go_on.set()
    assert sorted(each.result(60) for each in coming)[: MANY - len(refused)] == [200] * (
        MANY - len(refused)
    )


@pytest.mark.parametrize("place", PLACES)
def test_without_a_bound_all_wait(open_site: Any, place: str) -> None:
    """The negative control."""
    wait, equal, _, _ = PLACES[place]
    site = open_site(wait, max_waiting=None)
    coming = site.come(equal=equal)
    others = MANY if wait is in_a_call else MANY - 1  # the call is waited for, too
    wait_until(lambda: site.service.admission.waiting("ann") == others)
    assert not any(each.done() for each in coming)
    site.held.go_on.set()
    assert [each.result(60) for each in coming] == [200] * MANY
    assert not equal or site.held.inside == 1, "one has run, and all have its answer"
