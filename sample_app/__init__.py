"""A small learning site that shows the user write lock at work.

Start with `learning/`, the site's actions: each is get, modify, put under one lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import flask

__all__ = ["create_app"]


def create_app(config: Mapping[str, object] | None = None) -> flask.Flask:
    """Build the site; see `sample_app.app.create_app`."""
    # Imported here because the stack runner only starts processes and need not load Flask, ndb and
    # gRPC.
    from sample_app import app

    return app.create_app(config)
