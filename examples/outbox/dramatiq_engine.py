"""Dramatiq as an engine of the outbox: a recipe.

The site has `Outbox(DramatiqEngine())`, and a worker is

    USERLOCK_OUTBOX=shop.jobs:outbox dramatiq examples.outbox.dramatiq_engine:broker
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from userlock.outbox import Wake
from userlock.outbox.engines.bounded import BoundedEngine, Outcomes
from userlock.outbox.outbox import outbox_of_environment

broker = RedisBroker(
    url=os.environ["DRAMATIQ_BROKER"], socket_connect_timeout=0.1, socket_timeout=0.3
)


@dramatiq.actor(broker=broker, queue_name="userlock", max_retries=0, time_limit=3_600_000)
def run_job(key: str) -> None:
    """Run a job of the app's outbox. The relay repeats it, not Dramatiq."""
    outbox_of_environment().run(key)


class DramatiqEngine(BoundedEngine):
    """A queue of Dramatiq. It knows no names: a second message does no harm."""

    def __init__(self) -> None:
        super().__init__("Dramatiq")

    def send(self, messages: Sequence[Wake], outcomes: Outcomes, ends: float) -> None:
        for index, each in enumerate(messages):
            delay = round(each.delay * 1000) or None
            self.client.enqueue(run_job.message(each.key), delay=delay)
            outcomes[index] = None

    def open_client(self) -> RedisBroker:
        return broker  # redis-py opens connections of its own in a forked child
