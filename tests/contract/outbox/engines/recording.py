"""An outbox for worker processes: it notes the keys that it is to run in a Redis, and runs none."""

from __future__ import annotations

import os
from typing import Any

import redis

from userlock.outbox import Outbox, Outcome

#: The lists in Redis, and the variable with the Redis's URL.
DELIVERED = "delivered"
FOREIGN = "foreign"
REDIS = "TEST_REDIS"


class RecordingOutbox(Outbox):
    """Runs nothing."""

    def run(self, key: str) -> Outcome:
        """Note a key."""
        with redis.Redis.from_url(os.environ[REDIS]) as client:
            client.rpush(DELIVERED, key)
        return Outcome.RAN


def foreign(*arguments: Any) -> None:
    """Note that a function was called which is none of the outbox; RQ gives callbacks a job."""
    with redis.Redis.from_url(os.environ[REDIS]) as client:
        client.rpush(FOREIGN, getattr(arguments[0], "id", arguments[0]))


outbox = RecordingOutbox("inline://?threads=0")
