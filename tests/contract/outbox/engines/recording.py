"""An outbox for worker processes: it notes the keys that it is to run in a Redis, and runs none."""

from __future__ import annotations

import os

import redis

from userlock.outbox import Outbox, Outcome

#: The list in Redis, and the variable with the Redis's URL.
DELIVERED = "delivered"
REDIS = "TEST_REDIS"


class RecordingOutbox(Outbox):
    """Runs nothing."""

    def run(self, key: str) -> Outcome:
        """Note a key."""
        with redis.Redis.from_url(os.environ[REDIS]) as client:
            client.rpush(DELIVERED, key)
        return Outcome.RAN


outbox = RecordingOutbox("inline://?threads=0")
