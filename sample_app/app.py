"""The application factory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

import flask

from sample_app import jobs, lock_notes, private_pages, problems, same_origin, studio
from sample_app.api import api
from sample_app.config import Settings
from sample_app.flows import flows, new_key
from sample_app.lab.bench import bench
from sample_app.lab.crashes import bench as crashes
from sample_app.lab.pages import pages as lab_pages
from sample_app.pages import views
from sample_app.protection import lock_service, model_layer, ndb_client
from sample_app.storage import open_storage
from sample_app.tasks import tasks
from sample_app.web import utc_now
from sample_app.words import counted
from userlock import LockService
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.contrib.flask import UserLock
from userlock.contrib.inspector import Inspector
from userlock.outbox import Outbox


def create_app(config: Mapping[str, object] | None = None) -> flask.Flask:
    """Build the site from `config`, and otherwise from the environment.

    Keys: MEMCACHED, GOOGLE_CLOUD_PROJECT, DATASTORE_EMULATOR_HOST, PROTECTION, THINK_MS, LAB_DIR,
    OUTBOX, STORAGE, PAYMENT_PROVIDER, DEATHS and SECRET_KEY (see `sample_app.config`), and for
    tests NOW (a function that returns the time, naive and in UTC), LOCK_SERVICE and CLOCK, of jobs
    and requests. Other keys are Flask's.

    It opens connections. Call it in the process that serves, not in one that forks afterwards. A
    gRPC channel does not survive a fork.
    """
    config = dict(config or {})
    settings = Settings.load(config)
    app = flask.Flask(__name__)
    app.config.from_mapping(
        {"NOW": utc_now, "CLOCK": SYSTEM_CLOCK, "MAX_CONTENT_LENGTH": MAX_FORM_BYTES, **config}
    )
    app.config.update(
        SECRET_KEY=settings.secret_key,
        SESSION_COOKIE_SAMESITE="Lax",
        THINK_MS=settings.think_ms,
        PROTECTION=settings.protection,
        LAB_DIR=settings.lab_dir,
        INSPECTOR=settings.inspector,
        PAYMENT_PROVIDER=settings.payment_provider,
        DEATHS=settings.deaths,
    )
    app.add_template_filter(counted)
    app.add_template_global(new_key)
    private_pages.install(app)
    same_origin.install(app)
    client = ndb_client(settings)
    service = config.get("LOCK_SERVICE")
    if not isinstance(service, LockService):
        service = lock_service(settings)
    checks = model_layer(settings)
    outbox = Outbox(
        settings.outbox,
        client=client,
        service=service,
        claim_seconds=300,
        clock=cast(Clock, app.config["CLOCK"]),
    )
    jobs.install(app, outbox)
    studio.install(app, outbox, open_storage(settings.storage))
    UserLock(
        app,
        client=client,
        service=service,
        outbox=outbox,
        batch_prefixes=("/tasks/",),
        # The lab sends crowds for one learner, and shows how they wait. A public site keeps the
        # default, so that one user cannot occupy all threads.
        max_waiting=None,
        enforcement=checks.enforcement,
        fencing=checks.fencing,
        inspector=Inspector(_is_here, flows=flows, back_to="/") if settings.inspector else None,
    )
    for blueprint in (views, api, tasks):
        app.register_blueprint(blueprint)
    if settings.lab_bench:
        app.register_blueprint(bench)
        crashes.install(app, outbox)
    if settings.lab_dir:
        app.register_blueprint(lab_pages)
    problems.install(app)
    lock_notes.install(app)
    return app


#: The largest form or JSON document, without a picture. The site's own have some hundred bytes.
MAX_FORM_BYTES = 64 * 1024

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _is_here(request: flask.Request) -> bool:
    """Return whether a request comes directly from this machine. A real site checks the user.

    A foreign page can point its own host name at this machine and read the responses as its own
    (DNS rebinding). So the host name has to be one of this machine's.
    """
    forwarded = "X-Forwarded-For" in request.headers or "Forwarded" in request.headers
    try:
        name = urlsplit(f"//{request.host}").hostname
    except ValueError:
        return False
    return request.remote_addr in _LOOPBACK and name in _LOOPBACK and not forwarded
