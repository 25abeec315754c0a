"""Worker processes of RQ, Celery and Dramatiq on a real Redis, which note what they are given."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import redis

from sample_app.stack.children import Child
from tests.contract.outbox.engines import recording
from tests.servers import RedisServer

ROOT = Path(__file__).parents[4]


class Workers:
    """A Redis, and a worker.

    Args:
        folder: for their files.
        command: makes the worker's command from the Redis's host and port.
        env: further variables of the worker; {redis} stands for the host and port.
        ready: returns whether the worker takes messages, by its log.
    """

    def __init__(
        self,
        folder: Path,
        command: Callable[[str], Sequence[str]],
        *,
        env: dict[str, str] | None = None,
        ready: str,
    ) -> None:
        self.redis = RedisServer(folder)
        address = self.redis.address
        log_file = folder / "worker.log"
        given = {name: text.format(redis=address) for name, text in (env or {}).items()}
        self._child = Child(
            "the worker",
            command(address),
            answers=lambda: log_file.exists() and ready in log_file.read_text(errors="replace"),
            log_file=log_file,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PYTHONUNBUFFERED": "1",
                "USERLOCK_OUTBOX": f"{recording.__name__}:outbox",
                recording.REDIS: self.redis.url,
                **given,
            },
        )
        self._child.start()
        self._child.wait_until_it_answers(60)
        self._client = redis.Redis.from_url(self.redis.url)

    def delivered(self) -> list[str]:
        """Return the keys that the worker was given until now."""
        keys: list[bytes] = self._client.lrange(recording.DELIVERED, 0, -1)  # type: ignore[assignment]
        return [each.decode() for each in keys]

    def stop(self) -> None:
        """Stop both."""
        self._client.close()
        self._child.stop()
        self.redis.stop()
