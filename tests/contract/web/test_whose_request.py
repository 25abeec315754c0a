"""The state of a request belongs to the thread and task that opened it, in each integration.

Rule 1: whatever ends inside a request does not end it.
Rule 2: a request begins clean, and leaves the thread as it was.
Rule 3: closed in another thread, it changes nothing there. By WSGI: Django and ASGI end within the
call, and Flask refuses to tear a request down without its context.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import flask
import pytest
import starlette.requests
import werkzeug.test
from google.cloud import ndb
from google.cloud.ndb.context import get_context, get_toplevel_context

import userlock
from tests.contract.web.sites import ALL_SITES, SITES, Ask, site
from userlock.contrib import flask as extension
from userlock.contrib import request_scope, wsgi
from userlock.contrib.asgi import Flows
from userlock.lock import scope as scopes


class Role(userlock.Model):
    """Rights of a user, which requests read."""

    _write_policy = userlock.WritePolicy.unsafe("a test")
    admin = ndb.BooleanProperty()


def state() -> tuple[object, ...]:
    """Return all that belongs to the request, or the code, that runs in this thread."""
    return scopes.current.get(), get_context(False), get_toplevel_context(False)


def in_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(30)


# --- rule 1 -------------------------------------------------------------------------------------


def a_request_to_itself(ask: Ask) -> None:
    ask("/inner")


def a_request_from_a_thread(ask: Ask) -> None:
    in_thread(lambda: ask("/inner"))


def a_request_from_a_copy_of_the_context(ask: Ask) -> None:
    copied = contextvars.copy_context()
    in_thread(lambda: copied.run(ask, "/inner"))


def work_in_a_copy_of_the_context(ask: Ask) -> None:
    def work() -> None:
        with userlock.global_lock("bob"):
            assert userlock.current_scope() is not None

    copied = contextvars.copy_context()
    in_thread(lambda: copied.run(work))


def a_copied_request_in_a_thread(ask: Ask) -> None:
    in_thread(flask.copy_current_request_context(lambda: flask.request.path))


def a_copied_request_in_this_thread(ask: Ask) -> None:
    flask.copy_current_request_context(lambda: flask.request.path)()


def another_app_with_the_same_environment(ask: Ask) -> None:
    app = flask.Flask("other")
    extension.UserLock(app, service=request_service())
    app(flask.request.environ, lambda *_: print).close()  # type: ignore[attr-defined]


def request_service() -> userlock.LockService:
    current = userlock.current_scope()
    assert current is not None
    return current.service


ENDS_INSIDE = [
    a_request_to_itself,
    a_request_from_a_thread,
    a_request_from_a_copy_of_the_context,
    work_in_a_copy_of_the_context,
]
OF_FLASK = [
    a_copied_request_in_a_thread,
    a_copied_request_in_this_thread,
    another_app_with_the_same_environment,
]
CASES = [
    *((kind, each) for kind in ALL_SITES for each in ENDS_INSIDE if kind != "asgi"),
    *(("asgi", each) for each in ENDS_INSIDE[1:]),  # no loop runs within another one
    *(("flask", each) for each in OF_FLASK),
]


def what_is_left(
    kind: str, inside: Callable[[Ask], None], client: ndb.Client, service: userlock.LockService
) -> list[str]:
    """Return what a request has lost by something that has ended inside of it."""
    lost: list[str] = []

    def view(path: str) -> str:
        if path == "/inner":
            return "inner"
        userlock.acquire_lock("ann")
        before = state()
        inside(ask)
        for name, one, other in zip(("scope", "context", "top"), before, state(), strict=True):
            if one is not other:
                lost.append(f"its {name}")
        if service.holder("ann") is None:
            lost.append("its lock")
        return "fine"

    before = state()
    with site(kind, view, client=client, service=service) as ask:
        assert ask("/outer").text == "fine"
    if state() != before:
        lost.append("the thread's state")
    if service.holder("ann") is not None:
        lost.append("its end")
    return lost


@pytest.mark.parametrize(("kind", "inside"), CASES)
def test_what_ends_inside_a_request_does_not_end_it(
    kind: str,
    inside: Callable[[Ask], None],
    ndb_client: ndb.Client,
    service: userlock.LockService,
) -> None:
    assert what_is_left(kind, inside, ndb_client, service) == []


@pytest.mark.parametrize("inside", OF_FLASK)
def test_the_control_of_rule_1(
    inside: Callable[[Ask], None],
    ndb_client: ndb.Client,
    service: userlock.LockService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a stack that copies share, as the environment is shared, the request loses all."""
    of_requests: dict[int, Any] = {}

    def shared() -> Any:
        return of_requests.setdefault(id(flask.request.environ), types.SimpleNamespace())

    monkeypatch.setattr(extension, "_flask_context", shared)
    current, context = scopes.current.get(), contextvars.copy_context()
    assert current is None
    assert context.run(what_is_left, "flask", inside, ndb_client, service) != []


# --- rule 2 -------------------------------------------------------------------------------------


@contextmanager
def left_context(client: ndb.Client, service: userlock.LockService) -> Iterator[None]:
    with client.context():
        yield


@contextmanager
def left_scope(client: ndb.Client, service: userlock.LockService) -> Iterator[None]:
    with userlock.scope(service, priority="batch") as opened:
        opened.max_waiting = 0
        yield


@contextmanager
def left_request(client: ndb.Client, service: userlock.LockService) -> Iterator[None]:
    """Another request that has not been closed, as its server has forgotten it."""
    scope = request_scope.RequestScope(client=client, service=service)
    with scope.open("GET", "/forgotten", lambda name: False):
        yield


@contextmanager
def left_transaction(client: ndb.Client, service: userlock.LockService) -> Iterator[None]:
    with client.context(), ExitStack() as stack:
        entered = []

        def enter() -> None:
            entered.append(stack.enter_context(get_context().use()))

        ndb.transaction(enter)
        yield


LEFT = [left_context, left_scope, left_request, left_transaction]
Left = Callable[..., AbstractContextManager[None]]


def reads_of_requests(
    kind: str, left: Left, client: ndb.Client, service: userlock.LockService
) -> list[Any]:
    """Let another request write between two of a thread; return what those have read and met."""
    met: list[Any] = []

    def view(path: str) -> str:
        found = userlock.current_scope()
        assert found is not None
        met.append((found.priority.value, found.max_waiting, ndb.in_transaction()))
        role = Role.get_by_id("ann")
        if path == "/write":
            role.admin = False
            role.put()
        return str(role.admin)

    with client.context():
        Role(id="ann", admin=True).put()
    with site(kind, view, client=client, service=service) as ask, left(client, service):
        before = state()
        reads = left in (left_context, left_request)
        if reads:
            Role.get_by_id("ann")
        read = [ask("/read").text]
        in_thread(lambda: ask("/write"))
        read.append(ask("/read").text)
        assert state() == before
        if reads:
            read.append(str(Role.get_by_id("ann").admin))  # as it had read it: no request's
    return [*read, *set(met)]


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("kind", SITES)
def test_a_request_begins_clean(
    kind: str, left: Left, ndb_client: ndb.Client, service: userlock.LockService
) -> None:
    own = ["True"] if left in (left_context, left_request) else []
    found = reads_of_requests(kind, left, ndb_client, service)
    assert found == ["True", "False", *own, ("interactive", 5, False)]


@pytest.mark.parametrize("kind", SITES)
def test_the_control_of_rule_2(
    kind: str,
    ndb_client: ndb.Client,
    service: userlock.LockService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request that adopts the open context reads what another one has read."""

    @contextmanager
    def adopted(client: ndb.Client, **options: Any) -> Iterator[None]:
        if get_context(False) is not None:
            yield
            return
        with client.context(**options):
            yield

    monkeypatch.setattr(request_scope, "own_context", adopted)
    found = reads_of_requests(kind, left_request, ndb_client, service)
    assert found[:2] == ["True", "True"]


@pytest.mark.parametrize("own", [True, False], ids=["", "the control"])
def test_a_flow_of_starlette_has_a_context_of_its_own(
    ndb_client: ndb.Client, service: userlock.LockService, own: bool
) -> None:
    """Not the one that was open when the event loop began, which all threads would share."""
    flows = Flows(client=ndb_client if own else None, service=service)
    seen: list[Any] = []

    @flows.idempotent(user=lambda request: "ann")
    def view(flow: Any) -> dict[str, str]:
        seen.append(get_context())
        return {}

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    headers = [(b"idempotency-key", b"1"), (b"content-type", b"application/json")]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    with ndb_client.context():
        around = get_context()
        scope |= {"path_params": {}, "query_string": b"", "scheme": "http"}
        scope["server"] = "testserver", 80

        async def ask() -> None:
            await view(starlette.requests.Request(scope, receive))

        asyncio.run(ask())
    assert (seen[0] is not around) is own


# --- rule 3 -------------------------------------------------------------------------------------


def stream(client: ndb.Client, service: userlock.LockService) -> Any:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        userlock.acquire_lock("ann")
        start_response("200 OK", [])
        return iter([b"a", b"b"])

    return wsgi.UserLockMiddleware(app, client=client, service=service)


def close_elsewhere(
    app: Any, client: ndb.Client, service: userlock.LockService
) -> tuple[bool, bool]:
    """Close a response in the thread of another request.

    Returns:
        Whether that one has kept its state, and whether the lock is free.
    """
    environ = werkzeug.test.create_environ("/", method="POST")

    def begin() -> Any:
        chunks = app(environ, lambda *_: None)
        next(iter(chunks))
        return chunks

    def close(chunks: Any) -> bool:
        other = request_scope.RequestScope(client=client, service=service)
        with other.open("GET", "/other", lambda name: False):
            before = state()
            chunks.close()
            return state() == before

    with ThreadPoolExecutor(1) as server, ThreadPoolExecutor(1) as another:
        chunks = server.submit(begin).result(30)
        assert service.holder("ann") is not None
        kept = another.submit(close, chunks).result(30)
    return kept, service.holder("ann") is None


def test_closed_in_another_thread_it_changes_nothing_there(
    ndb_client: ndb.Client, service: userlock.LockService
) -> None:
    app = stream(ndb_client, service)
    assert close_elsewhere(app, ndb_client, service) == (True, True)


def test_the_control_of_rule_3(
    ndb_client: ndb.Client, service: userlock.LockService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that takes every thread for its own."""
    monkeypatch.setattr(request_scope, "running_code", lambda: (0, 0))
    kept, _ = close_elsewhere(stream(ndb_client, service), ndb_client, service)
    assert not kept
