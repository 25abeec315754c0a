"""An hour without the engine, for the transactional tasks of appengine-python-standard.

The peer of tests/contract/outbox/test_outage.py: 1,000 tasks are staged in the hour, its cron page
sweeps meanwhile and for eight days after it. Datastore is the stub of that package; the engine is
a client that refuses each call, and later takes each; the clock is injected.

It has an environment of its own: `make bench-appengine`.
"""

from __future__ import annotations

import datetime
import logging
import os
import types
from typing import Any

os.environ.update(
    APPENGINE_USE_CLOUDTASK_PUSH_QUEUE="true",
    APPLICATION_ID="demo",
    GOOGLE_CLOUD_PROJECT="demo",
    GAE_APPLICATION="s~demo",
    GAE_SERVICE="default",
    GAE_VERSION="1",
)

from google.api_core.exceptions import ServiceUnavailable
from google.appengine.api import datastore, taskqueue
from google.appengine.api.taskqueue import cloudtask, cloudtask_transactional
from google.appengine.ext import ndb, testbed
from google.cloud import tasks_v2

_TASKS = 1_000
_MINUTE = datetime.timedelta(minutes=1)


class _Engine:
    """Cloud Tasks, down and up."""

    queue_path = staticmethod(tasks_v2.CloudTasksClient.queue_path)
    task_path = staticmethod(tasks_v2.CloudTasksClient.task_path)

    def __init__(self) -> None:
        self.down = True
        self.taken = 0

    def create_task(self, request: Any) -> None:
        if self.down:
            raise ServiceUnavailable("down")  # type: ignore[no-untyped-call]
        self.taken += 1


class _Clock(type):
    """In place of the class `datetime`, for the peer's module alone."""

    now = datetime.datetime(2026, 1, 1)  # noqa: DTZ001 (the peer's times have no zone)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime.datetime)

    def utcnow(cls) -> datetime.datetime:
        return _Clock.now


class _Datetime(metaclass=_Clock):
    pass


@ndb.transactional(xg=True)  # type: ignore[untyped-decorator]
def _handle(number: int) -> None:
    _Learner(id=number + 1).put()
    taskqueue.add(url="/work", params={"number": number}, transactional=True)


class _Learner(ndb.Model):
    pass


def run(sweep_minutes: int) -> tuple[int, int, int]:
    """Return the numbers of tasks that ran within an hour of the end, ever, and were left."""
    stubs = testbed.Testbed()
    stubs.activate()
    try:
        for init in ("datastore_v3", "memcache", "taskqueue", "app_identity"):
            getattr(stubs, f"init_{init}_stub")()
        engine = _Engine()
        cloudtask._get_client = lambda: engine
        cloudtask._get_region = lambda: "europe-west1"
        cloudtask_transactional.datetime = types.SimpleNamespace(
            datetime=_Datetime, timedelta=datetime.timedelta
        )
        for minute in range(60):
            for number in range(minute * _TASKS // 60, (minute + 1) * _TASKS // 60):
                _handle(number)
            _Clock.now += _MINUTE
            if minute % sweep_minutes == sweep_minutes - 1:
                cloudtask_transactional.sweep()
        engine.down = False
        soon = 0
        for minute in range(8 * 24 * 60):
            _Clock.now += _MINUTE
            if minute < 60 or minute % 60 == 0:
                cloudtask_transactional.sweep()
            if minute == 59:
                soon = engine.taken
        left = datastore.Query("_AE_PendingCloudTask", namespace="").Count()
        return soon, engine.taken, left
    finally:
        stubs.deactivate()


def main() -> None:
    logging.disable(logging.ERROR)
    print(f"{_TASKS} tasks staged in an hour without the engine; rows left after eight days")
    print(
        f"{'sweep every':>12} {'taken in the next hour':>24} {'taken':>7} {'lost':>6} {'left':>6}"
    )
    for minutes in (1, 10):
        soon, taken, left = run(minutes)
        lost = _TASKS - taken - left
        print(f"{minutes:>8} min {soon:>24} {taken:>7} {lost:>6} {left:>6}")


if __name__ == "__main__":
    main()
