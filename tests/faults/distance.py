"""A proxy to a server that is some way off: each packet takes its time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def distant(port: int, round_trip_seconds: float) -> Iterator[str]:
    """Yield the address of a proxy for `127.0.0.1:port` with that round-trip time."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            loop.call_later(round_trip_seconds / 2, writer.write, data)
        loop.call_later(round_trip_seconds / 2, writer.close)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(round_trip_seconds / 2)  # of the connection itself
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            with contextlib.suppress(OSError):
                await asyncio.gather(relay(reader, there_writer), relay(there_reader, writer))
        except asyncio.CancelledError:
            for each in (writer, there_writer):
                each.transport.abort()
            raise

    async def serve() -> asyncio.Server:
        return await asyncio.start_server(accept, "127.0.0.1", 0, backlog=1024)

    async def stop(server: asyncio.Server) -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # for the ends of the connections

    server = asyncio.run_coroutine_threadsafe(serve(), loop).result(10)
    try:
        host, found = server.sockets[0].getsockname()
        yield f"{host}:{found}"
    finally:
        asyncio.run_coroutine_threadsafe(stop(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
