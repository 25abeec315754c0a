"""The `stats` command: general figures, settings, reset. Other reports return ERROR."""

from __future__ import annotations

import os
from dataclasses import asdict

from userlock_emulator.memcache.cache import Cache
from userlock_emulator.memcache.item import MAX_ITEM_BYTES
from userlock_emulator.memcache.steps import CRLF, ERROR, Step, line

_DETAIL_USAGE = b"CLIENT_ERROR usage: stats detail on|off|dump"


class Stats:
    """The figures of one server. The server keeps `open_connections` up to date."""

    def __init__(self, cache: Cache, version: bytes) -> None:
        self._cache = cache
        self._version = version.decode()
        self.open_connections = 0

    def report(self, words: list[bytes]) -> Step:
        """Answer one `stats` command line."""
        match words[1:]:
            case []:
                return _table(self._general())
            case [b"settings", *_]:
                return _table(self._settings())
            case [b"reset", *_]:
                self._cache.counters.reset()
                return line(b"RESET")
            case [b"detail", b"on" | b"off", *_]:
                return line(b"OK")
            case [b"detail", b"dump", *_]:
                return _table({})
            case [b"detail", *_]:
                return line(_DETAIL_USAGE)
            case _:
                return line(ERROR)

    def _general(self) -> dict[str, object]:
        cache = self._cache
        return {
            "pid": os.getpid(),
            "uptime": cache.uptime_seconds,
            "time": cache.unix_time,
            "version": self._version,
            "pointer_size": 64,
            "curr_connections": self.open_connections,
            **asdict(cache.counters),
            "limit_maxbytes": cache.memory_limit_bytes,
            "threads": 1,
            "bytes": cache.used_bytes,
            "curr_items": len(cache),
        }

    def _settings(self) -> dict[str, object]:
        return {
            "maxbytes": self._cache.memory_limit_bytes,
            "verbosity": 0,
            "evictions": "on",
            "shutdown_command": "no",
            "num_threads": 1,
            "cas_enabled": "yes",
            "binding_protocol": "ascii",
            "item_size_max": MAX_ITEM_BYTES,
            "flush_enabled": "yes",
        }


def _table(rows: dict[str, object]) -> Step:
    lines = (f"STAT {name} {value}".encode() + CRLF for name, value in rows.items())
    return Step(reply=(*lines, b"END\r\n"))
