"""The module for commands, as `userlock flows list --app sample_app.operate:flows`.

Jobs, and the clock of requests, need the app's context, which a web server opens for each request.
"""

from __future__ import annotations

from sample_app.flows import flows
from sample_app.wsgi import app

__all__ = ["app", "flows", "outbox"]

app.app_context().push()
outbox = app.extensions["outbox"]
