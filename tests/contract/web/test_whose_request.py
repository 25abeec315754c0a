"""The state of a request belongs to the thread and task that opened it, in each integration.

Rule 1: whatever ends inside a request does not end it.
Rule 2: a request begins clean, and leaves the thread as it was.
Rule 3: closed in another thread, it changes nothing there.
Rule 4: responses that a thread takes in turn have each the state of its request.
Rules 3 and 4 are of WSGI and Flask: with Django and ASGI, a request ends within one call.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

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


class Place(NamedTuple):
    """The parts that a site stands on."""

    client: ndb.Client
    service: userlock.LockService


@pytest.fixture
def place(ndb_client: ndb.Client, service: userlock.LockService) -> Place:
    return Place(ndb_client, service)


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


def what_is_left(kind: str, inside: Callable[[Ask], None], place: Place) -> list[str]:
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
        if place.service.holder("ann") is None:
            lost.append("its lock")
        return "fine"

    before = state()
    with site(kind, view, client=place.client, service=place.service) as ask:
        assert ask("/outer").text == "fine"
    if state() != before:
        lost.append("the thread's state")
    if place.service.holder("ann") is not None:
        lost.append("its end")
    return lost


@pytest.mark.parametrize(("kind", "inside"), CASES)
def test_what_ends_inside_a_request_does_not_end_it(
    place: Place, kind: str, inside: Callable[[Ask], None]
) -> None:
    assert what_is_left(kind, inside, place) == []


@pytest.mark.parametrize("inside", OF_FLASK)
def test_the_control_of_rule_1(
    place: Place, inside: Callable[[Ask], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stack that copies share, as the environment is shared, the request loses all."""
    of_requests: dict[int, Any] = {}

    def shared() -> Any:
        return of_requests.setdefault(id(flask.request.environ), types.SimpleNamespace())

    monkeypatch.setattr(extension, "_flask_context", shared)
    current, context = scopes.current.get(), contextvars.copy_context()
    assert current is None
    assert context.run(what_is_left, "flask", inside, place) != []


# --- rule 2 -------------------------------------------------------------------------------------


@contextmanager
def left_context(place: Place) -> Iterator[None]:
    with place.client.context():
        yield


@contextmanager
def left_scope(place: Place) -> Iterator[None]:
    with userlock.scope(place.service, priority="batch") as opened:
        opened.max_waiting = 0
        yield


@contextmanager
def left_request(place: Place) -> Iterator[None]:
    """Another request that has not been closed, as its server has forgotten it."""
    scope = request_scope.RequestScope(client=place.client, service=place.service)
    with scope.open("GET", "/forgotten", lambda name: False):
        yield


@contextmanager
def left_transaction(place: Place) -> Iterator[None]:
    with place.client.context(), ExitStack() as stack:
        entered = []

        def enter() -> None:
            entered.append(stack.enter_context(get_context().use()))

        ndb.transaction(enter)
        yield


LEFT = [left_context, left_scope, left_request, left_transaction]
Left = Callable[..., AbstractContextManager[None]]


def reads_of_requests(kind: str, left: Left, place: Place) -> list[Any]:
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

    with place.client.context():
        Role(id="ann", admin=True).put()
    with (
        site(kind, view, client=place.client, service=place.service) as ask,
        left(place),
    ):
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
def test_a_request_begins_clean(place: Place, kind: str, left: Left) -> None:
    own = ["True"] if left in (left_context, left_request) else []
    found = reads_of_requests(kind, left, place)
    assert found == ["True", "False", *own, ("interactive", 5, False)]


@pytest.mark.parametrize("kind", SITES)
def test_the_control_of_rule_2(place: Place, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that adopts the open context reads what another one has read."""

    @contextmanager
    def adopted(client: ndb.Client, **options: Any) -> Iterator[None]:
        if get_context(False) is not None:
            yield
            return
        with client.context(**options):
            yield

    monkeypatch.setattr(request_scope, "own_context", adopted)
    found = reads_of_requests(kind, left_request, place)
    assert found[:2] == ["True", "True"]


@pytest.mark.parametrize("own", [True, False], ids=["", "the control"])
def test_a_flow_of_starlette_has_a_context_of_its_own(place: Place, own: bool) -> None:
    """Not the one that was open when the event loop began, which all threads would share."""
    flows = Flows(client=place.client if own else None, service=place.service)
    seen: list[Any] = []

    @flows.idempotent(user=lambda request: "ann")
    def view(flow: Any) -> dict[str, str]:
        seen.append(get_context())
        return {}

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    headers = [(b"idempotency-key", b"1"), (b"content-type", b"application/json")]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    with place.client.context():
        around = get_context()
        scope |= {"path_params": {}, "query_string": b"", "scheme": "http"}
        scope["server"] = "testserver", 80

        async def ask() -> None:
            await view(starlette.requests.Request(scope, receive))

        asyncio.run(ask())
    assert (seen[0] is not around) is own


# --- rules 3 and 4 ------------------------------------------------------------------------------


def wsgi_stream(place: Place) -> Any:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        return seen_by_stream(environ["PATH_INFO"])

    return wsgi.UserLockMiddleware(app, client=place.client, service=place.service)


def flask_stream(place: Place) -> Any:
    app = flask.Flask(__name__)
    extension.UserLock(app, client=place.client, service=place.service)

    @app.get("/<name>")
    def view(name: str) -> Any:
        def stream() -> Iterator[bytes]:
            # As `stream_with_context` of Flask 3.0; 3.1.2 ends the request when the view returns.
            with flask.globals.request_ctx._get_current_object():  # type: ignore[attr-defined]
                yield b""
                yield from seen_by_stream(f"/{name}")

        steps = stream()
        next(steps)
        return steps

    return app


def seen_by_stream(path: str) -> Iterator[bytes]:
    """Yield whether each step has the same state, which is the path's."""
    userlock.acquire_lock(path)
    began = state()
    while True:
        now, scope = state(), userlock.current_scope()
        good = now == began and scope is not None and scope.request == f"GET {path}"
        yield b"own" if good else b"foreign"


STREAMS = [wsgi_stream, flask_stream]


class Response:
    """A response that a server takes step by step."""

    def __init__(self, app: Any, path: str) -> None:
        self.chunks = app(werkzeug.test.create_environ(path), lambda *_: None)
        self._steps = iter(self.chunks)

    def step(self) -> str:
        return str(next(self._steps), "ascii")

    def close(self) -> None:
        self.chunks.close()


def close_elsewhere(app: Any, place: Place) -> tuple[bool, bool]:
    """Close a response in the thread of another request.

    Returns:
        Whether that one has kept its state, and whether the lock is free.
    """

    def begin() -> Response:
        response = Response(app, "/ann")
        response.step()
        return response

    def close(response: Response) -> bool:
        other = request_scope.RequestScope(client=place.client, service=place.service)
        with other.open("GET", "/other", lambda name: False):
            before = state()
            response.close()
            return state() == before

    with ThreadPoolExecutor(1) as server, ThreadPoolExecutor(1) as another:
        response = server.submit(begin).result(30)
        assert place.service.holder("/ann") is not None
        kept = another.submit(close, response).result(30)
    return kept, place.service.holder("/ann") is None


@pytest.mark.parametrize(
    ("stream", "own"), [(wsgi_stream, True), (flask_stream, True), (wsgi_stream, False)]
)
def test_closed_in_another_thread_it_changes_nothing_there(
    place: Place, stream: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """The control: without variables of its own."""
    if not own:
        monkeypatch.setattr(request_scope, "in_own_context", lambda app: app)
    kept, free = close_elsewhere(stream(place), place)
    assert kept is own
    assert free or not own


#: The steps of two responses, and `A` or `B` for an end.
ORDERS = ["abab", "abaBA", "aabbA", "abAbB", "abBaA", "abABb", "baabAB", "bbBaaA"]


def taken_in_turn(app: Any, order: str, service: userlock.LockService) -> list[Any]:
    """Take the steps of two responses in one thread; return what they and the thread have lost."""
    before = state()
    open_ones = {"a": Response(app, "/ann"), "b": Response(app, "/ben")}
    lost: list[Any] = []
    for each in order:
        response = open_ones.get(each.lower())
        if response is None:
            continue
        if each.islower():
            lost += [each] if response.step() == "foreign" else []
            continue
        open_ones.pop(each.lower()).close()
    for response in open_ones.values():
        response.close()
    if state() != before:
        lost.append("the thread's state")
    lost += [path for path in ("/ann", "/ben") if service.holder(path) is not None]
    return lost


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("stream", STREAMS)
def test_responses_taken_in_turn_have_each_its_own_state(
    place: Place, stream: Callable[..., Any], order: str
) -> None:
    assert taken_in_turn(stream(place), order, place.service) == []


@pytest.mark.parametrize("stream", STREAMS)
def test_a_response_read_within_a_request_has_its_own_state(
    place: Place, stream: Callable[..., Any]
) -> None:
    app = stream(place)
    outer = request_scope.RequestScope(client=place.client, service=place.service)
    with outer.open("GET", "/outer", lambda name: False):
        before, response = state(), Response(app, "/ann")
        assert [response.step(), response.step()] == ["own", "own"]
        assert state() == before
        response.close()
        assert state() == before


@pytest.mark.parametrize("stream", STREAMS)
def test_the_control_of_rule_4(
    place: Place, stream: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without variables of its own, a response has those of the newer one."""
    monkeypatch.setattr(request_scope, "in_own_context", lambda app: app)
    app, fresh = stream(place), contextvars.copy_context()
    assert fresh.run(taken_in_turn, app, "abaBA", place.service) == ["a", "a"]
