"""Engines: what calls a worker when a job is due. Cloud Tasks, RQ, threads of this process.

The row in Datastore is the truth. A message carries the key of a row and nothing else, so a lost,
late, early or second one does no harm: the worker reads the row, and the relay asks again for rows
that are still there.

An engine takes messages (`wake`), and delivers each to the outbox: by `deliver`, which `connect`
gave it, or to the web endpoint. `userlock.testing.EngineContract` is a test suite for engines.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

#: The module of each scheme of a URL.
_MODULES = {"inline": "inline", "cloudtasks": "cloudtasks", "rq": "rq", "rqs": "rq"}


class Wake(NamedTuple):
    """A message.

    Attributes:
        key: the row's key, as text.
        name: its own, at random, of letters and digits: an engine that knows names takes it once.
            Another message for the same row has another one, as the first may be lost.
        delay: in seconds, from now. An engine may deliver at any other time.
    """

    key: str
    name: str
    delay: float = 0.0


class EngineError(Exception):
    """An engine has not taken a message, or it is unknown whether it has."""


@runtime_checkable
class Engine(Protocol):
    """An engine. Thread-safe, and usable in a forked child."""

    def connect(self, deliver: Callable[[str], object]) -> None:
        """Take the function that runs a row by its key, if this process is to run jobs."""
        ...

    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        """Take messages; return an error, or None, for each. A name that it knows is no error.

        Args:
            messages: at most 100.
            timeout: for all, in seconds. Those left then have an error.
        """
        ...

    def close(self) -> None:
        """Give connections and threads back."""
        ...


def open_engine(url: str | Engine) -> Engine:
    """Return the engine that a URL names.

    Raises:
        ValueError: the URL is malformed. The text shows no password.
        ImportError: an extra is missing; the text names it.
    """
    if isinstance(url, Engine):
        return url
    if not isinstance(url, str):
        raise TypeError(
            f"an engine is a URL like 'cloudtasks://PROJECT/LOCATION/QUEUE', or has the methods "
            f"connect, wake and close; this is a {type(url).__name__}"
        )
    # Not by urlsplit, whose errors quote their input, with a password.
    module_name = _MODULES.get(url.partition(":")[0].lower())
    if module_name is None:
        raise ValueError(
            "the URL names no engine; there are: inline://, cloudtasks://PROJECT/LOCATION/QUEUE, "
            "rq://HOST:PORT/DATABASE and, with TLS, rqs://"
        )
    engine: Engine = importlib.import_module(f"{__name__}.{module_name}").open_url(url)
    return engine
