"""Celery as an engine of the outbox: a recipe.

The site has `Outbox(CeleryEngine(make_app))`, and a worker is

    USERLOCK_OUTBOX=shop.jobs:outbox celery -A examples.outbox.celery_engine worker
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from celery import Celery

from userlock.outbox import Wake
from userlock.outbox.engines.bounded import BoundedEngine, Outcomes
from userlock.outbox.outbox import outbox_of_environment


class CeleryEngine(BoundedEngine):
    """A Celery app, created in each process. It knows no names: a second message does no harm."""

    def __init__(self, make_app: Callable[[], Celery]) -> None:
        self._make_app = make_app
        super().__init__("Celery")

    def send(self, messages: Sequence[Wake], outcomes: Outcomes, ends: float) -> None:
        for index, each in enumerate(messages):
            self.client.send_task("run_job", (each.key,), countdown=each.delay or None, retry=False)
            outcomes[index] = None

    def open_client(self) -> Celery:
        return self._make_app()


def make_app() -> Celery:
    """Return an app whose connections have the time-outs of a request."""
    app = Celery(broker=os.environ["CELERY_BROKER"], set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=True,  # a worker that dies leaves its message
        broker_connection_retry_on_startup=True,
        broker_transport_options={"socket_connect_timeout": 0.1, "socket_timeout": 0.3},
    )
    return app


app = make_app()
app.conf.broker_transport_options = {}  # the worker waits for messages for longer


@app.task(name="run_job")
def run_job(key: str) -> None:
    """Run a job of the app's outbox."""
    outbox_of_environment().run(key)
