"""The parts of a Redis URL."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit, urlunsplit

from userlock.stores.options import options_of
from userlock.stores.pool import CONNECT_TIMEOUT, REPLY_TIMEOUT


class Named(NamedTuple):
    """The parts of a URL."""

    client_url: str  # for redis-py
    prefix: str
    connect_timeout: float
    timeout: float
    shown: str  # without user and password, for messages


def parse_url(url: str) -> Named:
    """Parse `redis://[USER:PASSWORD@]HOST:PORT/DB?prefix=NAME`; `ValueError` if malformed."""
    parts = urlsplit(url)
    shown = url
    if "@" in parts.netloc:
        shown = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if parts.scheme not in ("redis", "rediss"):
        raise ValueError(f"{shown!r}: a Redis URL begins with redis:// or rediss://")
    if not parts.hostname:
        raise ValueError(f"{shown!r} names no host")
    if "," in parts.hostname:
        raise ValueError(f"{shown!r} names several servers: leases are kept in one Redis")
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{shown!r}: {error}") from error
    if port == 0:
        raise ValueError(f"{shown!r}: port 0 does not exist")
    if not re.fullmatch(r"/?[0-9]*", parts.path):
        raise ValueError(f"{shown!r}: the database must be a number, not {parts.path[1:]!r}")
    options = options_of(parts, shown)
    prefix = options.pop("prefix", "userlock")
    if not prefix:
        raise ValueError(f"{shown!r}: the prefix must not be empty")
    times = {"socket_connect_timeout": CONNECT_TIMEOUT, "socket_timeout": REPLY_TIMEOUT}
    for name in times.keys() & options.keys():
        text = options.pop(name)
        if not _is_time(text):
            raise ValueError(f"{shown!r}: {name} must be a number of seconds above 0")
        times[name] = float(text)
    client_url = urlunsplit(parts._replace(query=urlencode(options)))
    connect_timeout, timeout = times.values()
    return Named(client_url, prefix, connect_timeout, timeout, shown)


def _is_time(text: str) -> bool:
    try:
        return 0 < float(text) <= 86400
    except ValueError:
        return False
