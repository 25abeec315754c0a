"""RQ: jobs on a Redis (extra `rq`).

    rq://[USER:PASSWORD@]HOST:PORT/DATABASE?queue=NAME        rqs:// with TLS

    USERLOCK_OUTBOX=shop.jobs:outbox rq worker --with-scheduler \
        --worker-class userlock.outbox.engines.rq.Worker userlock

A worker of RQ runs any function that is named in Redis. Those here run one: `Job` reads the key, as
JSON, and RQ's notes of its own progress; no callbacks, webhooks, retries or results. In RQ's own
workers a message fails.

A message is an RQ job that names `RUN_JOB`, with the key as its argument and the message's name as
its id: Redis takes a name once until the job has run or, failed, for an hour. RQ's scheduler keeps
delayed messages; where no worker has one, the relay sends the job when it is due.

gRPC must not be forked in use, so `Worker`, which forks for each job, imports the app in each
child. `SimpleWorker` imports it once.
"""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult

try:
    import redis
    import rq.job
    import rq.worker
    from redis.backoff import NoBackoff
    from redis.retry import Retry
    from rq import Queue
    from rq.exceptions import DuplicateJobError, NoSuchJobError
    from rq.serializers import JSONSerializer
except ImportError as error:
    raise ImportError("rq:// needs RQ 2.9 or later: pip install 'userlock[rq]'") from error

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.errors import ConfigurationError
from userlock.outbox.engines import Wake
from userlock.outbox.engines.bounded import BoundedEngine, Outcomes
from userlock.outbox.outbox import outbox_of_environment
from userlock.stores import urls
from userlock.stores.pool import CONNECT_TIMEOUT, REPLY_TIMEOUT
from userlock.stores.redis.url import Named, parse
from userlock.stores.urls import AddressError, options_of

#: The function that messages name. RQ's own workers would call it.
RUN_JOB = f"{__name__}.refuse_job"
#: After that time RQ ends a job, which runs all that are due of an owner. In seconds.
_MOST_SECONDS = 3600
#: For how long RQ keeps a message that ended with an error of Datastore. In seconds.
_KEEP_FAILED_SECONDS = 3600
_DESCRIPTION = "a job of userlock.outbox"
#: All that a worker reads of a message; the rest of a record in Redis has no effect.
_READ = frozenset(
    b"data created_at origin status worker_name enqueued_at started_at ended_at "
    b"last_heartbeat".split()
)
#: RQ counts in whole seconds. A message that comes early finds nothing to do.
_WHOLE_SECONDS = 1.0
#: The schemes, and what they stand for.
_SCHEMES = {"rq": "redis", "rqs": "rediss"}
_QUEUE = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


def refuse_job(_key: str) -> None:
    """Raise: a worker that calls a function by its name would call any other one, too."""
    raise ConfigurationError(
        f"this worker runs any function that is named in Redis. To fix it: rq worker "
        f"--worker-class {__name__}.Worker"
    )


class RQEngine(BoundedEngine):
    """A queue of RQ."""

    def __init__(self, server: Named, queue: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._url = server.client_url
        self.queue = queue
        ((host, port),) = server.addresses
        super().__init__(f"rq at {host}:{port}", clock)

    def send(self, messages: Sequence[Wake], outcomes: Outcomes, ends: float) -> None:
        queue = Queue(self.queue, connection=self.client, serializer=JSONSerializer)
        for index, message in enumerate(messages):
            if self.clock.now() >= ends:
                return
            try:
                with contextlib.suppress(DuplicateJobError):
                    self._enqueue(queue, message)
                outcomes[index] = None
            except redis.ResponseError as error:  # to this one: the next may fit into its memory
                outcomes[index] = error

    def _enqueue(self, queue: Any, message: Wake) -> None:
        options = {
            "job_id": message.name,
            "unique": True,
            "job_timeout": _MOST_SECONDS,
            "result_ttl": 0,
            "failure_ttl": _KEEP_FAILED_SECONDS,
            "description": _DESCRIPTION,
        }
        if message.delay > 0:
            moment = self.clock.wall() + message.delay + _WHOLE_SECONDS
            at = datetime.datetime.fromtimestamp(moment, datetime.UTC)
            queue.enqueue_at(at, RUN_JOB, message.key, **options)
        else:
            queue.enqueue(RUN_JOB, message.key, **options)

    def open_client(self) -> Any:
        return redis.Redis.from_url(
            self._url,
            socket_connect_timeout=CONNECT_TIMEOUT,
            socket_timeout=REPLY_TIMEOUT,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
        )


class Job(rq.job.Job):
    """A message, as our workers read it: whatever Redis says, one function with one key."""

    def restore(self, raw_data: Any) -> None:
        """Take over a record of Redis. NoSuchJobError: it is malformed; a worker passes it over."""
        self.serializer = JSONSerializer
        try:
            super().restore({name: raw_data[name] for name in raw_data if name in _READ})
        except NoSuchJobError:
            raise
        except Exception as error:
            raise NoSuchJobError("the record is malformed") from error
        self.description, self.timeout = _DESCRIPTION, _MOST_SECONDS
        self.result_ttl, self.failure_ttl = 0, _KEEP_FAILED_SECONDS

    @property
    def func(self) -> Any:
        """Return the function to call. ValueError: the message names another one."""
        if self.func_name != RUN_JOB or self.instance is not None:
            raise ValueError("the message is none of userlock.outbox: its function is not run")
        return _run_job


def _run_job(key: str) -> None:
    outbox_of_environment().run(key)


class _OurJobs(rq.worker.BaseWorker):
    """A worker that reads messages as `Job`, whatever its options say."""

    def __init__(self, queues: Any, name: str | None = None, **options: Any) -> None:
        names = [each if isinstance(each, str) else each.name for each in queues]
        ours = {"job_class": Job, "serializer": JSONSerializer}
        super().__init__(names, name, **{**options, **ours})


class Worker(_OurJobs, rq.worker.Worker):
    """Forks for each job: the app is imported in the child."""


class SimpleWorker(_OurJobs, rq.worker.SimpleWorker):
    """Runs jobs in its own process: the app is imported once."""


def open_url(url: str) -> RQEngine:
    """Return the engine of a URL. The text of a ValueError shows neither user nor password."""
    return urls.open_url(url, _of_parts, _SCHEMES)


def _of_parts(parts: SplitResult) -> RQEngine:
    if "," in (parts.hostname or ""):
        raise AddressError("it must name one host, as rq://HOST:PORT/DATABASE")
    queue = options_of(parts, queue="userlock")["queue"]
    if not _QUEUE.fullmatch(queue):
        raise AddressError("a queue's name has letters, digits, and the characters _ . : -")
    return RQEngine(parse(parts._replace(scheme=_SCHEMES[parts.scheme], query="")), queue)
