"""Jobs: functions that are called later, staged in the caller's transaction.

handler                      Datastore                    engine
begin ─────────────────────▶
get, change, stage()         (nothing is sent yet)
commit ────────────────────▶ change and job: both or none
leave the lock
wake ───────────────────────────────────────────────────▶ runs it; if this message is
                                                          lost, the relay sends another
"""

from __future__ import annotations

import datetime
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, TypedDict, TypeVar

from google.cloud import ndb

from userlock.clock import Clock
from userlock.errors import ConfigurationError, JobArgumentsRefused, JobStagedOutside
from userlock.lock.lease import check_lock_id
from userlock.ndb.client import ClientOfProcess
from userlock.ndb.context import current_attempt, in_transaction
from userlock.ndb.transactions import after_commit, runs_later
from userlock.numbers import check_seconds
from userlock.outbox import arguments
from userlock.outbox.context import MOST_DELAY
from userlock.outbox.retry import Retry
from userlock.outbox.rows import JobRow, NameRow, name_of_job, new_key
from userlock.outbox.waking import Due, Waker, text_of

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Keywords of `stage`, which a job's function cannot have.
OPTIONS = frozenset({"delay", "at", "tier", "dedupe"})
#: The longest period and time limit, in seconds.
_MOST_PERIOD = 366 * 86_400
_MOST_NAME = 200
#: A job that is due within this time is asked for at once. In seconds.
_SOON = 60.0


class StagedJob(NamedTuple):
    """A job in the outbox.

    Attributes:
        key: of its row, as text; `userlock outbox show KEY` shows it.
        owner: the lock id; None for a job without an owner.
        duplicate: whether a job of the same `dedupe=` was there already, and this is that one.
    """

    key: str
    owner: str | None
    duplicate: bool = False


class JobOptions(TypedDict, total=False):
    """The options of `Outbox.job`."""

    name: str | None
    retry: Retry | None
    never_retry: Iterable[type[BaseException]]
    transactional: bool
    ordered: bool
    on_dead: str
    tier: str
    owner: Literal["first argument"] | None
    time_limit: float | None
    every: float | datetime.timedelta | None


class Job(Generic[_P, _R]):
    """A function that an outbox calls; made by `Outbox.job`. Calling it calls the function.

    Its first argument names the owner: the lock id under which it runs; unless it has none.

    Attributes:
        name: the name in the rows. A renamed function keeps it by `name=`.
        retry: its retries.
        never_retry: errors after which it is dead at once.
        has_owner: whether it has an owner, under whose lock it runs.
        time_limit: the longest run, in seconds; None: there is no limit.
        every: the time between two runs of a periodic job, in seconds; None: it is none.
        transactional: whether it runs in the transaction that removes it.
        ordered: whether it waits for the owner's earlier jobs.
        blocks: whether, dead, it holds the owner's later ones up.
        tier: its tier.
    """

    def __init__(
        self,
        function: Callable[_P, _R],
        waker: Waker,
        clock: Clock,
        client: ClientOfProcess,
        outbox: str,
        default_retry: Retry,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        never_retry: Iterable[type[BaseException]] = (),
        transactional: bool = False,
        ordered: bool = True,
        on_dead: str = "skip",
        tier: str = "",
        owner: str | None = "first argument",
        time_limit: float | None = None,
        every: float | datetime.timedelta | None = None,
    ) -> None:
        if not callable(function) or isinstance(function, type):
            raise ConfigurationError(
                f"a job is a function, not {function!r:.80}. To fix it: write @outbox.job above a "
                f"function, or @outbox.job(name=…)"
            )
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name or f"{function.__module__}.{function.__qualname__}"
        self.retry = default_retry if retry is None else retry
        self.never_retry = tuple(never_retry)
        self.transactional = transactional
        self.has_owner = owner is not None
        self.time_limit = time_limit
        self.every = every.total_seconds() if isinstance(every, datetime.timedelta) else every
        self.ordered = ordered and self.has_owner
        self.blocks = on_dead == "block"
        self.tier = tier
        self._waker = waker
        self._clock = clock
        self._client = client
        self._outbox = outbox
        self._signature = inspect.signature(function)
        self._check(on_dead)

    def _check(self, on_dead: str) -> None:
        name, parameters = self.name, self._signature.parameters
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _MOST_NAME:
            raise ConfigurationError(f"a job's name has 1 to {_MOST_NAME} characters: {name!r:.99}")
        if runs_later(self.function):
            raise ConfigurationError(
                f"job {name}: a coroutine or generator would run after its lock is left. To fix "
                f"it: make it a plain function"
            )
        taken = OPTIONS.intersection(parameters)
        if taken:
            raise ConfigurationError(
                f"job {name} has a parameter {min(taken)!r}, which is an option of stage(). To fix "
                f"it: give it another name"
            )
        if self.has_owner and next(iter(parameters), "self") in ("self", "cls"):
            raise ConfigurationError(
                f"job {name} needs a first parameter that names its owner, the lock id, as in "
                f"`def {self.function.__name__}(user_id, …)`"
            )
        for option, value, least in (
            ("time_limit", self.time_limit, 0.001),
            ("every", self.every, 60),
        ):
            if value is not None:
                check_seconds(f"job {name}: {option}", value, least=least, most=_MOST_PERIOD)
        if self.every is not None and (self.has_owner or parameters):
            raise ConfigurationError(
                f"job {name} is periodic: nobody gives it arguments. To fix it: give owner=None, "
                f"and let it take none"
            )
        if on_dead not in ("skip", "block"):
            raise ConfigurationError(f"job {name}: on_dead is 'skip' or 'block', not {on_dead!r}")
        for tier in (self.tier, *self.retry.tiers.values()):
            if not self._waker.knows(tier):
                raise ConfigurationError(f"job {name}: the outbox has no tier {tier!r:.80}")

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    # --- staging ----------------------------------------------------------------------------

    def stage(
        self,
        *args: Any,
        delay: float | datetime.timedelta | None = None,
        at: datetime.datetime | None = None,
        tier: str | None = None,
        dedupe: str | None = None,
        **kwargs: Any,
    ) -> StagedJob:
        """Stage a call of the function in the running transaction: one more put of its commit.

        Rolled back, it never was. Run again by ndb, it is staged once. It runs
        at least once, after the commit, under the owner's lock; jobs of one
        owner run in the order of their commits.

        Args:
            args: the function's arguments; the first one names the owner.
            delay: the time before it runs, in seconds. Up to 30 days.
            at: instead of `delay`, a moment with its time zone.
            tier: the tier, by default the job's.
            dedupe: stages it once while a job of this name and owner has not begun to run. Costs
                a look-up.
            kwargs: the function's keyword arguments.

        Raises:
            JobStagedOutside: there is no transaction; see `stage_now`.
            ConfigurationError: the transaction is one of another database than the outbox's.
            JobArgumentsRefused: the arguments are no JSON, or more than 900 kB.
            TypeError: the function does not take these arguments.
            ValueError: an option is out of its range.
        """
        row = self._row(args, kwargs, delay, at, tier)
        if not in_transaction():
            raise JobStagedOutside(
                f"job {self.name} was staged outside of a transaction, which would have to carry "
                f"it. To fix it: stage it in the `@userlock.transactional` function that "
                f"writes the change, or use stage_now()",
                job=self.name,
            )
        if self._client.is_elsewhere():
            raise ConfigurationError(
                f"job {self.name} was staged in the ndb context of another database than its "
                f"outbox's, where nobody would find it. To fix it: give each database an outbox "
                f"of its own"
            )
        if dedupe is not None:
            existing = self._name(row, dedupe)
            if existing is not None:
                return StagedJob(text_of(existing), row.owner, duplicate=True)
        row.index = next(current_attempt().numbers)
        row.put()
        if row.ready_at <= row.staged_at + _SOON * 1e6:
            delay_seconds = (row.ready_at - row.staged_at) / 1e6
            after_commit(lambda: self._waker.wake([Due(row.key, row.tier, delay_seconds)]))
        return StagedJob(text_of(row.key), row.owner)

    def stage_now(self, *args: Any, **options: Any) -> StagedJob:
        """Stage a call in a commit of its own, whatever transaction is running. As `stage`.

        The caller's transaction may still be rolled back: the job runs then all the same.
        """
        staged: StagedJob = ndb.transaction(
            lambda: self.stage(*args, **options), propagation=_INDEPENDENT
        )
        return staged

    def _row(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        delay: float | datetime.timedelta | None,
        at: datetime.datetime | None,
        tier: str | None,
    ) -> Any:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"job {self.name}: {error}") from None
        owner = None
        if self.has_owner:
            owner = check_lock_id(next(iter(bound.arguments.values())))
        tier = self.tier if tier is None else tier
        if not self._waker.knows(tier):
            raise ValueError(f"job {self.name}: the outbox has no tier {tier!r:.80}")
        now = round(self._clock.wall() * 1e6)
        ready_at = now + self._delay(delay, at)
        row = JobRow(
            key=new_key(owner, now, ordered=self.ordered),
            outbox=self._outbox,
            owner=owner,
            job=self.name,
            arguments=arguments.encode(self.name, args, kwargs),
            ready_at=ready_at,
            delayed=ready_at > now,
            ordered=self.ordered,
            tier=tier,
            staged_at=now,
        )
        row.enqueue()
        row.look_when_ready()
        return row

    def _delay(self, delay: float | datetime.timedelta | None, at: datetime.datetime | None) -> int:
        """Return the time before it runs, in microseconds."""
        if at is not None:
            if delay is not None:
                raise ValueError(f"job {self.name}: give delay= or at=, not both")
            if not isinstance(at, datetime.datetime) or at.tzinfo is None:
                raise ValueError(f"job {self.name}: at must be a datetime with its time zone")
            delay = at.timestamp() - self._clock.wall()
            delay = max(delay, 0.0)
        if isinstance(delay, datetime.timedelta):
            delay = delay.total_seconds()
        if delay is None:
            return 0
        given = check_seconds(f"job {self.name}: delay", delay, least=0, most=MOST_DELAY)
        return round(given * 1e6)

    def _name(self, row: Any, dedupe: str) -> Any:
        """Take the name for a row; return the key of the job that has it."""
        if not isinstance(dedupe, str) or not dedupe:
            raise JobArgumentsRefused(
                f"job {self.name}: dedupe must be a text that is not empty, not {dedupe!r:.80}",
                job=self.name,
            )
        row.name = name_of_job(self._outbox, self.name, dedupe)
        known = row.name_key.get()
        if known is not None:
            return known.job_key
        NameRow(key=row.name_key, job_key=row.key).put()
        return None


#: Of `ndb.transaction`: a transaction of its own, within another one.
_INDEPENDENT = ndb.TransactionOptions.INDEPENDENT
