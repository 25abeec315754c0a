"""The platform that the process runs on."""

from __future__ import annotations

import os


def on_app_engine() -> bool:
    """Return whether this is App Engine, which removes its own headers from foreign requests."""
    return any(os.environ.get(name) for name in ("GAE_APPLICATION", "GAE_ENV"))


def on_cloud_run() -> bool:
    """Return whether this is a service of Cloud Run."""
    return bool(os.environ.get("K_SERVICE"))
