"""A cache on a clock that tests move, and a client without sockets."""

from __future__ import annotations

from userlock_emulator.memcache.cache import DEFAULT_MEMORY_LIMIT_BYTES, Cache
from userlock_emulator.memcache.protocol import Connection, Protocol

START = 1_800_000_000
"""The time at which every test begins, in seconds since 1970."""


class ManualClock:
    def __init__(self) -> None:
        self.now = float(START)

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Talk:
    """One or more clients of one cache; each call is one read by the server."""

    def __init__(self, memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES) -> None:
        self.clock = ManualClock()
        self.cache = Cache(clock=self.clock, memory_limit_bytes=memory_limit_bytes)
        self.protocol = Protocol(self.cache)
        self.connection = self.protocol.connect()

    def __call__(self, sent: bytes, connection: Connection | None = None) -> bytes:
        return b"".join((connection or self.connection).receive(sent))
