"""Bounds on the clients of a server, and their options on the command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The bounds of one server.

    Attributes:
        max_connections: the most connections at a time. Another one gets an error and is closed.
        max_threads: the most requests that are executed at a time; others wait for a thread.
            The memcached server has one thread, and ignores this.
        idle_seconds: the time after which a connection without a request is closed.
        request_seconds: the time for a request to arrive in full, and for a client to take some
            of its reply. The connection is then closed.

    Raises:
        ValueError: a bound is not positive.
    """

    max_connections: int = 500
    max_threads: int = 256
    idle_seconds: float = 600.0
    request_seconds: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf:
                raise ValueError(f"{field.name} is {value!r}; it must be positive")


DEFAULTS = Limits()


def add_arguments(parser: argparse.ArgumentParser, *, threads: bool) -> None:
    """Add the options of a server's bounds; `limits_of` reads them."""

    def add(option: str, parse: Callable[[str], float], value: float, text: str) -> None:
        unit = "SECONDS" if parse is _seconds else "N"
        parser.add_argument(
            option, type=parse, default=value, metavar=unit, help=f"{text} (default: {value:g})"
        )

    add("--max-connections", _count, DEFAULTS.max_connections, "clients at a time")
    if threads:
        add("--max-threads", _count, DEFAULTS.max_threads, "requests executed at a time")
    add("--idle-timeout", _seconds, DEFAULTS.idle_seconds, "life of a connection without requests")
    add(
        "--request-timeout",
        _seconds,
        DEFAULTS.request_seconds,
        "time for a request to arrive, and for a client to read its reply",
    )


def limits_of(options: argparse.Namespace) -> Limits:
    """Return the bounds that parsed options describe."""
    return Limits(
        max_connections=options.max_connections,
        max_threads=getattr(options, "max_threads", DEFAULTS.max_threads),
        idle_seconds=options.idle_timeout,
        request_seconds=options.request_timeout,
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 6 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a number from 1 to 999999: {text[:40]!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 10_000_000:
        raise argparse.ArgumentTypeError(f"not a positive number of seconds: {text[:40]!r}")
    return seconds
