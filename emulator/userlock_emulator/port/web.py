"""HTTP/1.1 on accepted connections: all of them in one thread, which runs no request.

A connection costs a thread only while its request is executed. A client that sends half a request,
or does not read its reply, therefore delays no other, and its connection ends after a while.
"""

import asyncio
import logging
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextvars import copy_context
from email.utils import formatdate
from http import HTTPStatus

from userlock_emulator.limits import Limits
from userlock_emulator.port.browsers import Gate, local_refusal
from userlock_emulator.port.http_body import BodyError, decoded, read_body
from userlock_emulator.port.http_head import Head, HeadError, read_head
from userlock_emulator.port.reply import Reply, in_json
from userlock_emulator.port.rpcs import CLIENT

#: Method, path, content type and body to reply.
Answer = Callable[[str, str, str, bytes], Reply]

# "Limits": a request may have 10 MiB. The rest is room for the encoding around the entities.
MAX_REQUEST_BYTES = 16 * 1024 * 1024

_MAX_LINE_BYTES = 64 * 1024
_BYTES_AT_ONCE = 256 * 1024
_LINGER_SECONDS = 1.0
_MAX_CLIENT = 200
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_log = logging.getLogger(__name__)


class Web:
    """The HTTP/1.1 connections.

    Args:
        answer: executes a request, in a thread of the executor.
        executor_of: returns the executor for a path.
        gate: refuses requests of foreign web pages.
        limits: the times allowed to clients.
        released: called when a connection has ended.
        is_local: returns whether a path is for clients on this machine only.
    """

    def __init__(
        self,
        answer: Answer,
        executor_of: Callable[[str], Executor],
        gate: Gate,
        limits: Limits,
        released: Callable[[], None],
        is_local: Callable[[str], bool],
    ) -> None:
        self._answer = answer
        self._executor_of = executor_of
        self._gate = gate
        self._limits = limits
        self._released = released
        self._is_local = is_local
        # A forked process shares a kernel's selector, as epoll, and could change it. This one is
        # an object of ours.
        self._loop = asyncio.SelectorEventLoop(selectors.PollSelector())
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = 0
        self._stopping = False
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="emulator-http", daemon=True
        )
        self._thread.start()

    def take(self, connection: socket.socket) -> None:
        """Serve a connection until either side closes it."""
        try:
            self._loop.call_soon_threadsafe(self._begin, connection)
        except RuntimeError:  # stopped
            connection.close()

    def every(self, seconds: float, work: Callable[[], None]) -> None:
        """Call a short function regularly, in the thread of the connections."""

        def turn() -> None:
            if not self._stopping:
                work()
                self._loop.call_later(seconds, turn)

        self._loop.call_soon_threadsafe(turn)

    def hang_up(self, grace_seconds: float) -> None:
        """Finish requests in progress for at most that time, then end all connections."""
        asyncio.run_coroutine_threadsafe(self._hang_up(grace_seconds), self._loop).result()

    def join(self) -> None:
        """End the thread, after `hang_up` and after the executors."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- in the thread of the loop ----------------------------------------------------------------

    def _begin(self, connection: socket.socket) -> None:
        if self._stopping:
            connection.close()
            return
        task = self._loop.create_task(self._serve(connection))
        self._tasks.add(task)
        # Here, for a task that is cancelled before it has begun.
        task.add_done_callback(lambda _: self._end(task, connection))

    def _end(self, task: asyncio.Task[None], connection: socket.socket) -> None:
        self._tasks.discard(task)
        connection.close()
        self._released()

    async def _hang_up(self, grace_seconds: float) -> None:
        self._stopping = True
        deadline = self._loop.time() + grace_seconds
        ending = set(self._tasks)
        while self._busy and self._loop.time() < deadline:
            # Each connection ends after the request in progress.
            _, ending = await asyncio.wait(
                ending, timeout=deadline - self._loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            peer = connection.getpeername()
            reader, writer = await asyncio.open_connection(sock=connection, limit=_MAX_LINE_BYTES)
            # A drained writer has passed on everything.
            writer.transport.set_write_buffer_limits(high=0)
            try:
                while not self._stopping and await self._converse(reader, writer, peer):
                    pass
                writer.write_eof()
                async with asyncio.timeout(_LINGER_SECONDS):
                    # Unread bytes would turn the end into a reset, which may outrun the reply.
                    while await reader.read(_BYTES_AT_ONCE):
                        pass
            finally:
                writer.transport.abort()
        except (OSError, EOFError) as error:  # TimeoutError is an OSError
            _log.debug("hanging up on a client: %r", error)
        except Exception:
            _log.exception("hanging up on a client")

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: tuple[str, int]
    ) -> bool:
        """Serve one request. Return whether another one may follow."""
        async with asyncio.timeout(self._limits.idle_seconds):
            begin = await reader.read(1)
        if not begin:
            return False
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                head = await read_head(reader, begin)
                body = await self._body(head, reader, writer)
        except (HeadError, BodyError) as error:
            status = error.status if isinstance(error, HeadError) else HTTPStatus.BAD_REQUEST
            await self._send(writer, _plain(status, str(error)), None)
            return False
        self._busy += 1
        try:
            reply = await self._reply(head, body, peer)
            await self._send(writer, reply, head)
        finally:
            self._busy -= 1
        # A reply of unknown length, without chunks, lasts until the end of the connection.
        return head.persistent and (head.chunks or isinstance(reply.body, bytes))

    async def _body(
        self, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes:
        coding, length = head.single("Transfer-Encoding"), head.single("Content-Length")
        if coding is not None and length is not None:
            raise BodyError("there are a Transfer-Encoding and a Content-Length")
        if head.headers.get("Expect", "").lower() == "100-continue" and head.chunks:
            # The client waits for this before it sends the body.
            writer.write(_CONTINUE)
        body = await read_body(reader, MAX_REQUEST_BYTES, coding=coding, length=length)
        return decoded(body, MAX_REQUEST_BYTES, coding=head.single("Content-Encoding"))

    async def _reply(self, head: Head, body: bytes, peer: tuple[str, int]) -> Reply:
        refusal = self._gate.refusal(head.headers)
        if refusal is None and self._is_local(head.path):
            refusal = local_refusal(head.method, head.headers, peer[0])
        if refusal is not None:
            return in_json(HTTPStatus.FORBIDDEN, {"error": refusal})
        method = "GET" if head.method == "HEAD" else head.method
        content_type = str(head.headers.get("Content-Type", ""))
        CLIENT.set(lambda: _client_of(head, peer))
        executor, context = self._executor_of(head.path), copy_context()
        try:
            return await self._loop.run_in_executor(
                executor, context.run, self._answer, method, head.path, content_type, body
            )
        except Exception as error:
            _log.exception("%s %s failed", head.method, head.path)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR, f"The emulator failed: {error!r}")

    async def _send(self, writer: asyncio.StreamWriter, reply: Reply, head: Head | None) -> None:
        """Send a reply. Without a head: to a request that was not understood."""
        status, content_type, body, headers = reply
        in_chunks = not isinstance(body, bytes) and head is not None and head.chunks
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Date: {formatdate(usegmt=True)}",
            f"Content-Type: {content_type}",
            *(f"{name}: {value}" for name, value in headers),
        ]
        if isinstance(body, bytes):
            lines.append(f"Content-Length: {len(body)}")
        elif in_chunks:
            lines.append("Transfer-Encoding: chunked")
        if head is None or not head.persistent or self._stopping:
            lines.append("Connection: close")
        writer.write("\r\n".join([*lines, "\r\n"]).encode("ascii"))
        if head is None or head.method != "HEAD":
            if isinstance(body, bytes):
                await self._write(writer, body)
            elif head is not None:
                await self._write_pieces(writer, body, in_chunks=in_chunks, path=head.path)
        await self._drain(writer)

    async def _write_pieces(
        self, writer: asyncio.StreamWriter, pieces: Iterator[bytes], *, in_chunks: bool, path: str
    ) -> None:
        executor = self._executor_of(path)
        while (piece := await self._loop.run_in_executor(executor, next, pieces, None)) is not None:
            if in_chunks and piece:  # an empty chunk would mark the end
                piece = b"%x\r\n%b\r\n" % (len(piece), piece)
            await self._write(writer, piece)
        if in_chunks:
            writer.write(b"0\r\n\r\n")

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Write as fast as the client reads, and at a minimum speed."""
        for start in range(0, len(data), _BYTES_AT_ONCE):
            writer.write(memoryview(data)[start : start + _BYTES_AT_ONCE])
            await self._drain(writer)

    async def _drain(self, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._limits.request_seconds):
            await writer.drain()


def _client_of(head: Head, peer: tuple[str, int]) -> str:
    """Return the program that a request names, and its address."""
    named = str(head.headers.get("User-Agent", ""))[:_MAX_CLIENT]
    return f"{named or 'HTTP'} at {peer[0]}:{peer[1]}"


def _plain(status: HTTPStatus, text: str) -> Reply:
    return Reply(status, "text/plain", f"{text}\n".encode())
