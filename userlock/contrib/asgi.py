"""Integrate with any ASGI app (FastAPI, Starlette): a scope for each request, and answers.

    app.add_middleware(UserLockMiddleware, service=…)

In a coroutine write `async with userlock.global_lock(user_id):`. ndb does not know event loops:
code that uses it runs in threads (docs/async.md). So this middleware opens no ndb context.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Unpack

from userlock.contrib import request_scope
from userlock.contrib.problems import ANSWERED
from userlock.contrib.request_scope import Answer, RequestScope, ScopeOptions, on_demand
from userlock.errors import LockTimeout, UserLockError
from userlock.fork import reset_in_child
from userlock.ids import show_request
from userlock.lock.scope import LockScope, current_scope
from userlock.waits import finish

if TYPE_CHECKING:
    from userlock.contrib.idempotent_requests.starlette import Flows as Flows
else:
    __getattr__ = on_demand(__name__, Flows="userlock.contrib.idempotent_requests.starlette")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class UserLockMiddleware:
    """Give each HTTP request of an ASGI app its lock scope.

    The scope ends, and locks that are still held are released, when the app returns: with Starlette
    after background tasks. Errors that reach the middleware before the answer has begun are
    answered as in `userlock.contrib.flask.UserLock`; so add it inside of what answers errors itself
    (`app.add_middleware` does). Requests of other protocols go through.

    Args:
        app: the ASGI app.
        options: the options of `userlock.contrib.flask.UserLock`, but for `context_options`.
            `client` is for jobs of the outbox, which run in threads.
    """

    def __init__(self, app: App, **options: Unpack[ScopeOptions]) -> None:
        if "context_options" in options:
            raise TypeError("context_options has no use here: no ndb context is opened")
        self._app = app
        self._scope = RequestScope(**options)
        self._reset_threads()
        reset_in_child(self._reset_threads)

    def _reset_threads(self) -> None:
        #: Those of the hooks. Those of asyncio are the app's: slow jobs would take them all, and
        #: jobs may wait for the app.
        self._threads = ThreadPoolExecutor(thread_name_prefix="userlock-hook")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            try:
                await self._app(scope, receive, send)
            finally:
                if scope["type"] == "lifespan":
                    self._threads.shutdown(wait=False)
                    self._reset_threads()
            return
        path, headers = path_of(scope), _headers_of(scope)
        answer = await self._answer_by_hook(scope["method"], path, headers, receive)
        if answer is not None:
            await _send(send, answer.status, answer.headers, answer.body)
            return
        stack = self._scope.open(
            scope["method"], path, lambda name: name.lower() in headers, with_ndb=False
        )
        opened = current_scope()
        assert opened is not None
        has_gone_out = False
        failed: BaseException | None = None

        async def send_finished(message: Message) -> None:
            """Send a part of the answer, which begins after the writes under locks are finished."""
            nonlocal has_gone_out
            if message["type"] == "http.response.start":
                if message["status"] < 500 and opened.held:
                    await opened.afinish_writes()
                has_gone_out = True
            await send(message)

        try:
            await self._app(scope, receive, send_finished)
        except BaseException as error:
            failed = _to_answer(error)
            if has_gone_out or not isinstance(failed, ANSWERED):
                raise
        finally:
            await _close(stack, opened, failed, path)
        if isinstance(failed, UserLockError):
            problem = self._scope.problem_of(failed, path)
            await _send(send, problem.status, problem.headers, problem.body)

    async def _answer_by_hook(
        self, method: str, path: str, headers: dict[str, str], receive: Receive
    ) -> Answer | None:
        """Answer a request by a hook, in a thread; None if it is for the app."""
        if not any(hook.has(path) for hook in self._scope.hooks):
            return None
        body = await _body(receive)

        def answer() -> Answer | None:
            return self._scope.answer(
                method, path, lambda name: headers.get(name.lower()), lambda most: body[:most]
            )

        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, context.run, answer)


def _to_answer(error: BaseException) -> BaseException:
    """Return an error, or the first one of a task group if all of them are time-outs."""
    if isinstance(error, BaseExceptionGroup) and error.split(LockTimeout)[1] is None:
        return _to_answer(error.exceptions[0])
    return error


def path_of(scope: Scope) -> str:
    """Return the path that an app routes by: without the place where it is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def _headers_of(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    # The values of a repeated header are joined, as RFC 9110 has it. Else a proxy that has verified
    # one of two credentials would vouch for the other.
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


async def _close(
    stack: ExitStack, opened: LockScope, error: BaseException | None, path: str
) -> None:
    """Close the scope of a request. The locks that it still holds are released before."""
    try:
        if opened.held:
            await finish(opened.aclose, failing=error is not None)
    except Exception:
        # Raised here, the error would replace the answer.
        request_scope.log.exception("a write of %s failed after its answer", show_request(path))
    finally:
        request_scope.close(stack, error, path)


async def _body(receive: Receive) -> bytes:
    """Return the begin of a body, longer than any that is taken."""
    body, more = b"", True
    while more and len(body) <= request_scope.MOST_BODY_BYTES:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _send(send: Send, status: int, headers: Any, body: bytes) -> None:
    found = [*headers.items(), ("Content-Length", str(len(body)))]
    encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in found]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
