"""The platform that the process runs on, and how long it lets a request run."""

from __future__ import annotations

import os
from typing import NamedTuple

#: Of requests and of tasks on App Engine, in seconds: the limits of its first runtimes.
#: (Today's let a request run for ten minutes, too. A crashed request would then keep its user's
#: other requests out for so long.)
_APP_ENGINE = (60.0, 600.0)
#: Where no limit is known, in seconds.
_USUAL = 60.0
#: The limit as its operator names it, and as Cloud Run tells it to functions. Services are not
#: told theirs: https://cloud.google.com/run/docs/container-contract
_LIMITS = ("USERLOCK_REQUEST_SECONDS", "CLOUD_RUN_TIMEOUT_SECONDS")


class RequestLimits(NamedTuple):
    """The longest time that a request may run, in seconds.

    Attributes:
        interactive: of a request that a person waits for.
        batch: of a task or a scheduled request.
    """

    interactive: float
    batch: float


def request_limits() -> RequestLimits:
    """Return the platform's limits; a minute where none is known.

    Raises:
        ValueError: the limit in the environment is no number of seconds above 0.
    """
    for name in _LIMITS:
        text = os.environ.get(name, "")
        if text:
            seconds = float(text) if text.replace(".", "", 1).isdecimal() else 0.0
            if not 0 < seconds <= 86400:
                raise ValueError(
                    f"{name} must be a number of seconds up to a day, not {text!r:.40}"
                )
            return RequestLimits(seconds, seconds)
    if on_app_engine():
        return RequestLimits(*_APP_ENGINE)
    return RequestLimits(_USUAL, _USUAL)


def on_app_engine() -> bool:
    """Return whether this is App Engine, which removes its own headers from foreign requests."""
    return any(os.environ.get(name) for name in ("GAE_APPLICATION", "GAE_ENV"))


def on_cloud_run() -> bool:
    """Return whether this is a service of Cloud Run."""
    return bool(os.environ.get("K_SERVICE"))
