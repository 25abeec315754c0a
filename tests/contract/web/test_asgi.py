"""The ASGI middleware, with FastAPI and Starlette, under a real server."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import fastapi
import pytest
import starlette.applications
import uvicorn
from fastapi.responses import PlainTextResponse, StreamingResponse
from google.cloud import ndb
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

import userlock
from tests.waiting import wait_until
from userlock.contrib.asgi import UserLockMiddleware, path_of
from userlock.contrib.outbox_endpoints import OutboxEndpoints
from userlock.events import Listeners
from userlock.outbox import Outbox
from userlock.outbox.authentication import SharedSecret
from userlock.outbox.engines.inline import InlineEngine
from userlock.stores import MemoryStore


class Wallet(userlock.UserModel):
    """One user's wallet, locked by its key's name."""

    _lock_id_from_key = userlock.key_id
    coins = ndb.IntegerProperty(default=0)


class Answer(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Ask:
    """Asks a running server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(
        self, path: str, method: str = "POST", headers: Any = None, body: Any = b""
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            found = {name: response.headers.get_all(name, []) for name in response.headers}
            joined = {name: ", ".join(values) for name, values in found.items()}
            return Answer(response.status, joined, response.read())


Serve = Callable[[Any], Ask]


@pytest.fixture
def service() -> userlock.LockService:
    """Provide locks in memory, by the real time: requests run in threads."""
    return userlock.LockService(MemoryStore(), listeners=Listeners())


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve apps by uvicorn; each time a function that asks it."""
    with contextlib.ExitStack() as stack:
        yield lambda app: stack.enter_context(served(app))


@contextlib.contextmanager
def served(app: Any) -> Iterator[Ask]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield Ask(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


@pytest.fixture
def app(ndb_client: ndb.Client, service: userlock.LockService) -> fastapi.FastAPI:
    app = fastapi.FastAPI()
    app.add_middleware(
        UserLockMiddleware, client=ndb_client, service=service, batch_prefixes=["/tasks/"]
    )

    def put_a_coin(user: str) -> int:
        with ndb_client.context():
            wallet = Wallet.get_by_id(user) or Wallet(id=user)
            wallet.coins += 1
            wallet.put()
            return int(wallet.coins)

    @app.post("/async/{user}")
    async def in_a_coroutine(user: str) -> int:
        async with userlock.global_lock(user, wait_timeout=20):
            return await asyncio.to_thread(put_a_coin, user)

    @app.post("/thread/{user}")
    def in_a_thread(user: str) -> int:
        with userlock.global_lock(user, wait_timeout=20):
            return put_a_coin(user)

    @app.post("/kept/{user}")
    def kept(user: str) -> int:
        userlock.acquire_lock(user, wait_timeout=20)
        return put_a_coin(user)

    @app.post("/short/{user}")
    async def short(user: str) -> None:
        # Of ben each waits for the other one.
        async with userlock.global_lock(user, wait_timeout=0.05 if user == "ann" else 10):
            pass

    @app.post("/together/{user}")
    async def together(user: str, but: str = "") -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(short(user))
            group.create_task(short(user))
            if but:
                raise KeyError(but)

    @app.post("/unlocked/{user}")
    def unlocked(user: str) -> int:
        return put_a_coin(user)

    @app.get("/priority")
    @app.get("/tasks/priority")
    async def priority() -> PlainTextResponse:
        scope = userlock.current_scope()
        assert scope is not None
        return PlainTextResponse(f"{scope.priority.value} {scope.request} {scope.max_waiting}")

    return app


@pytest.fixture
def ask(app: fastapi.FastAPI, serve: Serve) -> Ask:
    return serve(app)


def test_a_handler_locks_gets_modifies_and_puts(ask: Ask, service: userlock.LockService) -> None:
    ways = ("/async/ann", "/thread/ann", "/kept/ann")
    assert [ask(way).json for way in ways] == [1, 2, 3]
    wait_until(lambda: service.holder("ann") is None)  # the answer goes out before


def test_no_update_is_lost(app: fastapi.FastAPI, serve: Serve) -> None:
    app.user_middleware.clear()
    service = userlock.LockService(MemoryStore(), listeners=Listeners())
    app.add_middleware(UserLockMiddleware, max_waiting=None, service=service)
    ask = serve(app)
    ways = [f"/{way}/{user}" for way in ("async", "thread") for user in ("ann", "bob")] * 15
    with ThreadPoolExecutor(30) as threads:
        answers = list(threads.map(ask, ways))
    assert {answer.status for answer in answers} == {200}
    for user in ("ann", "bob"):
        counted = [
            answer.json for way, answer in zip(ways, answers, strict=True) if way.endswith(user)
        ]
        assert sorted(counted) == list(range(1, 31))


def test_a_put_without_the_lock_is_refused(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    answer = ask("/unlocked/ann")
    assert answer.status == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "Wallet" not in answer.text
    assert caplog.text.count("CreatedWithoutLock:") == 1


def test_a_lock_that_is_not_free_is_a_problem_document(
    ask: Ask, service: userlock.LockService
) -> None:
    service.acquire("ann", request="POST /elsewhere")
    answer = ask("/short/ann")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json["error"] == "LockTimeout"
    assert "elsewhere" not in answer.text


def test_a_group_of_tasks_that_get_no_lock(ask: Ask, service: userlock.LockService) -> None:
    service.acquire("ann")
    answer = ask("/together/ann")
    assert (answer.status, answer.json["error"]) == (503, "LockTimeout")
    assert ask("/together/ben").status == 200
    assert ask("/together/ben?but=a+bug").status == 500


def test_too_many_wait(ask: Ask, service: userlock.LockService) -> None:
    lease = service.acquire("ann")
    with ThreadPoolExecutor(5) as threads:
        waiting = [threads.submit(ask, f"/{way}/ann") for way in ("async", "thread", "async")]
        waiting += [threads.submit(ask, f"/{way}/ann") for way in ("thread", "async")]
        wait_until(lambda: len(service.waiters("ann")) == 5)
        answer = ask("/async/ann")
        assert (answer.status, answer.json["error"]) == (429, "TooManyWaiting")
        service.release(lease)
        assert sorted(each.result().json for each in waiting) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("path", "headers", "says"),
    [
        ("/priority", {}, "interactive GET /priority 5"),
        ("/tasks/priority", {}, "batch GET /tasks/priority 3"),
        ("/priority", {"X-CloudTasks-QueueName": "nightly"}, "batch GET /priority 3"),
    ],
)
def test_the_request_says_the_priority(
    ask: Ask, path: str, headers: dict[str, str], says: str
) -> None:
    assert ask(path, "GET", headers).text == says


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("inspector", "unknown option 'inspector'; the options are client, ser"),
        ("context_options", "context_options has no use here"),
    ],
)
def test_options_of_no_use(option: str, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        UserLockMiddleware(nothing, **{option: {}})  # type: ignore[arg-type]


class TestStarlette:
    def test_a_client_that_hangs_up(self, serve: Serve, service: userlock.LockService) -> None:
        """The lock is released when the stream ends."""
        begun = threading.Event()

        async def stream(request: Request) -> Response:
            async def chunks() -> AsyncIterator[bytes]:
                async with userlock.global_lock("ann"):
                    begun.set()
                    while True:
                        yield b"x" * 1000
                        await asyncio.sleep(0.001)

            return StreamingResponse(chunks())

        app = starlette.applications.Starlette(routes=[Route("/", stream)])
        app.add_middleware(UserLockMiddleware, service=service)
        with socket.create_connection(("127.0.0.1", serve(app).port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert begun.wait(10)
            assert service.holder("ann") is not None
        wait_until(lambda: service.holder("ann") is None)

    def test_mounted_apps_and_background_tasks(
        self, serve: Serve, service: userlock.LockService
    ) -> None:
        held: list[object] = []

        async def background() -> None:
            held.append(service.holder("ann"))

        def endpoint(request: Request) -> Response:
            userlock.acquire_lock("ann")
            return Response(path_of(request.scope), background=BackgroundTask(background))

        inner = starlette.applications.Starlette(routes=[Route("/x", endpoint)])
        app = starlette.applications.Starlette(routes=[Mount("/inner", inner)])
        app.add_middleware(UserLockMiddleware, service=service)
        assert serve(app)("/inner/x", "GET").text == "/x"
        wait_until(lambda: service.holder("ann") is None)
        assert held[0] is not None

    def test_an_error_of_the_app_goes_on(self, serve: Serve, service: userlock.LockService) -> None:
        async def endpoint(request: Request) -> Response:
            userlock.acquire_lock("ann")
            raise ZeroDivisionError

        app = starlette.applications.Starlette(routes=[Route("/", endpoint)])
        app.add_middleware(UserLockMiddleware, service=service)
        assert serve(app)("/", "GET").status == 500
        assert service.holder("ann") is None


async def nothing(*_: Any) -> Any: ...


class AppThreads(ThreadPoolExecutor):
    """The one thread that asyncio has for an app."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        return super().submit(*args, **kwargs)


@pytest.fixture
def app_threads() -> Iterator[AppThreads]:
    with AppThreads() as threads:
        yield threads


@pytest.fixture(params=[True, False], ids=["", "the control"])
def own(request: pytest.FixtureRequest) -> bool:
    """Provide whether the library has threads of its own, or takes asyncio's."""
    return bool(request.param)


class TestThreadsOfAnApp:
    def test_a_job_may_wait_for_the_app(
        self,
        ndb_client: ndb.Client,
        service: userlock.LockService,
        serve: Serve,
        app_threads: AppThreads,
        own: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        began, called = threading.Event(), threading.Event()
        outbox = Outbox(InlineEngine(threads=0), client=ndb_client)

        @outbox.job
        def calls_the_app(user: str) -> None:
            began.set()
            assert called.wait(60)

        with ndb_client.context(), userlock.scope(service):
            row = calls_the_app.stage_now("ann").key.encode()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await asyncio.to_thread(called.set)
                await PlainTextResponse("called")(scope, receive, send)

        served = UserLockMiddleware(
            app,
            client=ndb_client,
            service=service,
            outbox=OutboxEndpoints(outbox, callers=[SharedSecret("s3cret" * 3)]),
        )
        if not own:
            monkeypatch.setattr(served, "_threads", app_threads)

        async def with_one_thread(scope: Any, receive: Any, send: Any) -> None:
            asyncio.get_running_loop().set_default_executor(app_threads)
            await served(scope, receive, send)

        ask = serve(with_one_thread)
        secret = {"Authorization": f"Bearer {'s3cret' * 3}"}
        with ThreadPoolExecutor() as clients:
            job = clients.submit(ask, "/userlock/jobs", headers=secret, body=row)
            assert began.wait(30)
            call = clients.submit(ask, "/")
            if own:
                assert called.wait(30)
            else:
                wait_until(lambda: app_threads.asked == 2)
                assert not called.is_set()
                called.set()
            assert (job.result().status, call.result().text) == (200, "called")
        asyncio.run(served({"type": "lifespan"}, nothing, nothing))
        wait_until(lambda: not [each for each in threading.enumerate() if "hook" in each.name])

    def test_a_lock_is_left_while_they_are_busy(
        self,
        ndb_client: ndb.Client,
        service: userlock.LockService,
        app_threads: AppThreads,
        own: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        busy = threading.Event()
        if not own:
            monkeypatch.setattr("userlock.lock.scope.in_thread", asyncio.to_thread)

        def save() -> None:
            with ndb_client.context():
                Wallet(id="ann").put()

        async def leave() -> None:
            asyncio.get_running_loop().set_default_executor(app_threads)
            async with userlock.global_lock("ann"):
                await asyncio.to_thread(save)
                app_threads.submit(busy.wait, 60)
            assert not busy.is_set()
            busy.set()

        async def run() -> None:
            leaving = asyncio.create_task(leave())
            while not own and app_threads.asked < 3:
                await asyncio.sleep(0)
            assert own or service.holder("ann") is not None
            if not own:
                assert not leaving.done()
                leaving.cancel()
                busy.set()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving

        with userlock.scope(service):
            asyncio.run(run())
        assert service.holder("ann") is None


def test_the_endpoints_of_an_outbox(
    ndb_client: ndb.Client, service: userlock.LockService, serve: Serve
) -> None:
    ran: list[str] = []
    outbox = Outbox(InlineEngine(), client=ndb_client)

    @outbox.job
    def greet(user: str) -> None:
        scope = userlock.current_scope()
        assert scope is not None
        assert ndb.get_context() is not None
        ran.append(f"{user} {scope.priority.value}")

    with ndb_client.context(), userlock.scope(service):
        ndb.transaction(lambda: greet.stage("ann"))
    endpoints = OutboxEndpoints(outbox, callers=[SharedSecret("s3cret" * 3)])

    async def nothing(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("the app")(scope, receive, send)

    app = UserLockMiddleware(nothing, client=ndb_client, service=service, outbox=endpoints)
    ask = serve(app)
    secret = {"Authorization": f"Bearer {'s3cret' * 3}"}
    assert ask("/").text == "the app"
    assert ask("/userlock/relay").status == 401
    for others in ("Bearer other-secret", ""):  # which of two has a proxy verified?
        both = {"Authorization": others, "authorization": secret["Authorization"]}
        assert ask("/userlock/relay", headers=both).status == 401
    assert ask("/userlock/jobs", headers=secret, body=b"x" * 5000).status == 413
    assert ask("/userlock/jobs", headers=secret, body=b"no key").status == 400
    assert ask("/userlock/relay", headers=secret).status == 200
