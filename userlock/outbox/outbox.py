"""The outbox: jobs, engines, relay and dead letters of an app."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from google.cloud import ndb

from userlock import apps
from userlock.arguments import check_kind, check_seconds
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.errors import ConfigurationError
from userlock.lock.service import LockService, check_service
from userlock.ndb.client import ClientOfProcess
from userlock.ndb.owners import in_namespace, in_namespace_of, joined
from userlock.ndb.transactions import is_plain
from userlock.outbox.dead_letters import DeadLetters
from userlock.outbox.engines import Engine, open_engine
from userlock.outbox.job import Job, JobOptions, Retry
from userlock.outbox.relay import Relay, Relayed
from userlock.outbox.rows import PeriodRow, own_job_key
from userlock.outbox.waking import Waker
from userlock.outbox.worker import Outcome, Worker

_NAME = re.compile(r"[A-Za-z0-9_-]{0,40}")

_P = ParamSpec("_P")
_R = TypeVar("_R")
_F = TypeVar("_F")


class Outbox:
    """Jobs that are never lost: staged in a transaction, run after it, until they are done.

        outbox = userlock.outbox.Outbox("cloudtasks://my-project/europe-west1/jobs")

        @outbox.job(never_retry=[BadAddress])
        def send_receipt(user_id: str, cents: int) -> None: ...

        @userlock.transactional
        def buy(user_id: str) -> None:
            ...
            send_receipt.stage(user_id, cents=2000)

    A job runs at least once after the commit, under its owner's lock; with `transactional=True`
    what it writes to Datastore is written exactly once. Jobs of one owner run in the order of their
    commits. Correct also without the lock and with engines that lose, repeat or delay messages.
    Jobs run in the namespace of the code that stages them.

    Args:
        engine: a URL (`cloudtasks://`, `rq://`, `inline://`), or an engine.
        tiers: more engines by name, as a slow lane with a rate of its own.
        name: part of stored data. Outboxes of one database have different names: each runs its own
            jobs.
        client: the `ndb.Client`, or a function that makes it, for code outside of web requests
            (the relay, threads). None: a context is open wherever the outbox is used.
        service: the source of locks; by default the configured one.
        retry: the retries of jobs that name none.
        claim_seconds: longer than any job runs. A worker that dies without the lock holds its
            job up for so long; with the lock, for its lease.
        clock: for all times.

    Attributes:
        name: as it was given.
        engines: the engines, each once.
        jobs: the registered jobs by name.
        dead: the dead letters.
    """

    def __init__(
        self,
        engine: str | Engine,
        *,
        tiers: Mapping[str, str | Engine] | None = None,
        name: str = "",
        client: Any = None,
        service: LockService | None = None,
        retry: Retry | None = None,
        claim_seconds: float = 900.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"an outbox's name has up to 40 letters, digits, and _ -, not {name!r:.80}"
            )
        engines = {"": open_engine(engine)}
        tiers = {} if tiers is None else tiers
        check_kind("tiers", tiers, Mapping, "a dict")
        for tier, each in tiers.items():
            if not isinstance(tier, str) or not tier.isidentifier():
                raise ValueError(f"a tier's name is a word, not {tier!r:.80}")
            engines[tier] = open_engine(each)
        self.name = name
        self.jobs: dict[str, Job[..., Any]] = {}
        self._chores: list[Callable[[], None]] = []
        self._client = ClientOfProcess(client)
        self._retry = Retry() if retry is None else retry
        check_kind("retry", self._retry, Retry, "a Retry")
        self._clock = clock
        service = None if service is None else check_service(service)
        self._waker = Waker(engines, clock)
        self.engines: list[Engine] = self._waker.engines
        claim_seconds = check_seconds("claim_seconds", claim_seconds, most=86_400)
        self._worker = Worker(name, self.jobs, self._waker, clock, service, claim_seconds)
        self.dead = DeadLetters(name, self._waker, clock, service)
        self.each_minute(self._stage_periodic)
        apps.note_made(self)
        for each in self._waker.engines:
            each.connect(self.run)

    @overload
    def job(self, function: Callable[_P, _R]) -> Job[_P, _R]: ...

    @overload
    def job(self, **options: Unpack[JobOptions]) -> Callable[[Callable[_P, _R]], Job[_P, _R]]: ...

    def job(self, function: Callable[..., Any] | None = None, **options: Unpack[JobOptions]) -> Any:
        """Register a function as a job; a decorator.

        The function's first parameter names the owner, the lock id, unless it has none.

        Options:

        - `name`: the name in the rows, without blanks, by default module and function. Give one
          before you rename or move a function that has rows.
        - `retry`: its retries, a `Retry`; by default the outbox's.
        - `never_retry`: classes of errors after which it is dead at once.
        - `transactional`: whether it runs in the transaction that removes it: what it writes to
          Datastore is written exactly once. It must follow the rules of transactions.
        - `ordered`: whether it runs after the owner's earlier jobs (the default). One that fails
          holds up the owner's later ordered ones until it is done or dead.
        - `on_dead`: `skip` (the default), or `block`: an ordered job that is dead holds the owner's
          later ones up until it is redriven or purged.
        - `tier`: the name of a tier.
        - `owner`: None for a job of nobody: it takes no lock, and waits for no other job.
        - `time_limit`: the longest run, in seconds. A longer one fails with `JobTimeLimit` at the
          next line of its code, also within a block that catches `Exception`.
        - `every`: the time between two runs, in seconds, of a function without arguments and
          owner: relays stage it once in each period (of UTC, beginning in 1970), in the default
          namespace. A late one stands for all periods that have passed.

        Raises:
            ConfigurationError: the name is taken, or the function cannot be a job.
        """

        def register(function: Callable[..., Any]) -> Job[..., Any]:
            own = self._waker, self._clock, self._client, self.name, self._retry
            job = Job(function, *own, **options)
            if job.name in self.jobs:
                raise ConfigurationError(
                    f"two jobs have the name {job.name}. To fix it: give name="
                )
            if job.time_limit is not None and job.time_limit > self._worker.claim_seconds:
                raise ConfigurationError(
                    f"job {job.name}: time_limit is above the outbox's claim_seconds, after which "
                    f"another worker runs the job too"
                )
            self.jobs[job.name] = job
            return job

        return register if function is None else register(function)

    @property
    def refused_messages(self) -> int:
        """Return how many messages of this process no engine has taken; the relay sends others."""
        return self._waker.failed

    def within(self, context: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        """Let each job run within a context of the app's, as the integration for Flask does."""
        self._worker.within.append(_plain("within", context))

    def each_minute(self, chore: Callable[[], None]) -> None:
        """Let relays, perhaps several at once, call a function each minute, in an ndb context."""
        self._chores.append(_plain("each_minute", chore))

    def run(self, key: str) -> Outcome:
        """Run the due jobs of an owner up to that of a message, and for some seconds later ones.

        Raises:
            ValueError: the text is no key of a job.
            GoogleAPIError, CommitInDoubt: Datastore does not answer. The relay asks again.
        """
        with self.context():
            found = own_job_key(key)
            with in_namespace_of(found):
                return self._worker.run(found)

    def relay(self, *, seconds: float = 50.0) -> Relayed:
        """Ask the engines once for all jobs that are due and still there, for at most that time.

        To be called every minute. Any number of processes may, at any time.

        Raises:
            GoogleAPIError: Datastore does not answer.
        """
        check_seconds("seconds", seconds, least=0, most=86_400)
        relay = self._new_relay()
        with self.context():
            relayed = relay.run_once(seconds=seconds)
            relay.do_chores()
        return relayed

    def cancel(self, key: str) -> bool:
        """Remove a job that no worker runs: in the running transaction, if there is one.

        In an ndb context.

        Args:
            key: its id, as `StagedJob.key`.

        Returns:
            False if a worker runs it, or it is gone already.

        Raises:
            ValueError: the text is no key of a job.
        """
        cancel = functools.partial(self._worker.cancel, own_job_key(key))
        cancelled: bool = ndb.transaction(cancel, join=True)
        return cancelled

    def _stage_periodic(self) -> None:
        """Stage the jobs whose period has begun. A new one runs first when the next one begins."""
        for job in self.jobs.values():
            if job.every is None:
                continue
            period = round(self._clock.wall() // job.every * job.every * 1e6)
            with in_namespace(""):
                key = ndb.Key(PeriodRow, joined(self.name, job.name))
                known = key.get(use_cache=False, use_global_cache=False)
                if known is None or known.period < period:
                    ndb.transaction(functools.partial(_begin_period, key, period, job))

    def relay_until(self, stopped: Callable[[], bool]) -> None:
        """Relay on and on, with pauses when there is nothing to do."""
        self._new_relay().run(stopped, self.context)

    def _new_relay(self) -> Relay:
        """Return a relay with a lease of its own: threads and forks share an outbox."""
        return Relay(self.name, self._waker, self._clock, self._chores)

    def context(self) -> contextlib.AbstractContextManager[None]:
        """Open an ndb context, where none is open."""
        return self._client.context("the outbox is")

    def close(self) -> None:
        """Close the engines."""
        self._waker.close()


def _plain(name: str, function: _F) -> _F:
    """Return a function. TypeError: it is none, or a call of it would run later."""
    if not is_plain(function):
        raise TypeError(f"{name} takes a plain function, not {function!r:.80}")
    return function


def _begin_period(key: Any, period: int, job: Job[..., Any]) -> None:
    """Stage a periodic job, unless another relay has done that meanwhile."""
    row = key.get()
    if row is None:
        PeriodRow(key=key, period=period).put()
    elif row.period < period:
        row.period = period
        row.put()
        job.stage()


def outbox_of_environment() -> Outbox:
    """Return the outbox that `USERLOCK_OUTBOX` names, or that of the app in `USERLOCK_APP`.

    For processes that are not the app, as a worker. ConfigurationError: they name none.
    """
    variable = apps.variable_of("outbox")
    name, app = os.environ.get(variable, ""), os.environ.get(apps.VARIABLE, "")
    if not (name or app):
        raise ConfigurationError(
            f"neither {apps.VARIABLE} nor {variable} is set, so the app's outbox is unknown. To "
            f"fix it: {apps.VARIABLE}=main:app, or {variable}=main:outbox"
        )
    if name:
        return apps.find_object(name, Outbox, "outbox")
    return apps.find_in_app(app, Outbox, "outbox")
