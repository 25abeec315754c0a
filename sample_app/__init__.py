"""A small learning site that shows the user write lock at work.

Read `learning/` first: what is done here, each action get, modify, put under one lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import flask

__all__ = ["create_app"]


def create_app(config: Mapping[str, object] | None = None) -> flask.Flask:
    """Build the site; see `sample_app.app.create_app`."""
    # Imported here so that the stack runner, which only starts processes, need
    # not load Flask, ndb and gRPC first.
    from sample_app import app

    return app.create_app(config)
