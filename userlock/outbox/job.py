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

import dataclasses
import datetime
import functools
import inspect
import random
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, TypedDict, TypeVar

from google.cloud import ndb

from userlock.arguments import check_bool, check_count, check_kind, check_number, check_seconds
from userlock.clock import Clock
from userlock.errors import ConfigurationError, JobArgumentsRefused, JobStagedOutside
from userlock.lock.lease import check_lock_id
from userlock.ndb.client import ClientOfProcess
from userlock.ndb.context import current_attempt, in_transaction, latest_of
from userlock.ndb.owners import joined, micros_now
from userlock.ndb.transactions import after_commit, runs_later
from userlock.outbox.context import MOST_DELAY
from userlock.outbox.rows import JobRow, NameRow, encoded, new_key
from userlock.outbox.waking import Due, Waker, text_of

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Keywords of `stage`, which a job's function cannot have.
OPTIONS = frozenset({"delay", "at", "tier", "dedupe"})
#: The longest period and time limit, in seconds.
_MOST_PERIOD = 366 * 86_400
_NAME = re.compile("[^ ]{1,200}")
#: A job that is due within this time is asked for at once. In seconds.
_SOON = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """The retries of a job: exponential, with jitter, bounded; the same on every engine.

        Retry(attempts=5, first_seconds=10)            # after 10, 20, 40, 80 s; then dead
        Retry(tiers={3: "slow"})                       # from the third failure on by that tier

    Attributes:
        attempts: the runs that may fail before the job is dead, those that end with their process
            included.
        first_seconds: the pause after the first failure.
        factor: by how much each pause is longer than the one before.
        most_seconds: the longest pause.
        jitter: the random part of a pause, from 0 to 1: jobs that failed together come apart.
        tiers: the tier from so many failures on.

    Raises:
        TypeError, ValueError: a number is none, or out of its range.
    """

    attempts: int = 12
    first_seconds: float = 5.0
    factor: float = 2.0
    most_seconds: float = 3600.0
    jitter: float = 0.5
    tiers: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count("Retry: attempts", self.attempts, least=1, most=1000)
        check_number("Retry: first_seconds", self.first_seconds, least=0, most=86_400)
        check_number("Retry: factor", self.factor, least=1, most=100)
        check_number("Retry: most_seconds", self.most_seconds, least=0, most=30 * 86_400)
        check_number("Retry: jitter", self.jitter, least=0, most=1)
        check_kind("Retry: tiers", self.tiers, Mapping, "a dict")
        for failures, tier in self.tiers.items():
            is_reached = type(failures) is int and 1 <= failures < self.attempts
            if not is_reached or not isinstance(tier, str):
                raise ValueError(
                    f"Retry: tiers name a tier from so many failures on, fewer than attempts "
                    f"({self.attempts}), as {{3: 'slow'}}, not {{{failures!r}: {tier!r}}}"
                )

    def pause(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """Return the pause after so many failures, in seconds."""
        exponent = min(failures - 1, 64)
        whole = min(self.first_seconds * self.factor**exponent, self.most_seconds)
        return whole * (1 - self.jitter * chance())

    def tier(self, failures: int, default: str) -> str:
        """Return the tier after so many failures."""
        reached = [each for each in self.tiers if each <= failures]
        return self.tiers[max(reached)] if reached else default


def _classes(errors: Any) -> tuple[type[BaseException], ...]:
    """Return classes of errors: one, or several. TypeError: something else is among them."""
    several = isinstance(errors, Iterable) and not isinstance(errors, str)
    classes = tuple(errors) if several else (errors,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise TypeError(f"never_retry must be classes of errors, not {each!r:.80}")
    return classes


class StagedJob(NamedTuple):
    """A job in the outbox.

    Attributes:
        key: of its row, as text, for `userlock outbox show KEY`.
        owner: the lock id; None for a job without an owner.
        duplicate: whether this is an earlier job of the same `dedupe=`.
    """

    key: str
    owner: str | None
    duplicate: bool = False


def outside(what: str, job: str, instead: str) -> JobStagedOutside:
    """Return the error of something that a transaction would have to carry with a job."""
    return JobStagedOutside(
        f"{what} outside of a transaction, which would have to carry it. To fix it: do that in "
        f"the `@userlock.transactional` function that writes the change, or use {instead}()",
        job=job,
    )


class JobOptions(TypedDict, total=False):
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

    Its attributes are the options of `Outbox.job`, with `time_limit` and `every` in seconds;
    `has_owner`: whether its first argument names its owner, the lock id under which it runs; and
    `blocks`: whether, dead, it holds the owner's later jobs up.
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
        named = name or hasattr(function, "__qualname__")
        if not callable(function) or isinstance(function, type) or not named:
            raise ConfigurationError(
                f"a job is a function, not {function!r:.80}. To fix it: write @outbox.job above a "
                f"function, or @outbox.job(name=…)"
            )
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name or f"{function.__module__}.{function.__qualname__}"
        self.retry = default_retry if retry is None else retry
        check_kind("retry", self.retry, Retry, "a Retry")
        self.never_retry = _classes(never_retry)
        self.transactional = check_bool("transactional", transactional)
        if owner not in (None, "first argument"):
            raise ValueError(
                f"owner must be None, or left to the first argument, not {owner!r:.80}"
            )
        self.has_owner = owner is not None
        self.time_limit = time_limit
        self.every = every.total_seconds() if isinstance(every, datetime.timedelta) else every
        self.ordered = check_bool("ordered", ordered) and self.has_owner
        self.blocks = on_dead == "block"
        self.tier = tier
        self._waker = waker
        self._clock = clock
        self._client = client
        self._outbox = outbox
        self._signature = inspect.signature(function)
        self._first = next(iter(self._signature.parameters), "self")
        self._check(on_dead)

    def _check(self, on_dead: str) -> None:
        name, parameters = self.name, self._signature.parameters
        # A blank ends the name in the cause of a dead letter.
        if not isinstance(name, str) or not _NAME.fullmatch(name) or not name.isprintable():
            raise ConfigurationError(
                f"a job's name has 1 to 200 characters, none of them a blank: {name!r:.99}"
            )
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
        for option, least in (("time_limit", 0.001), ("every", 60)):
            value = getattr(self, option)
            if value is not None:
                check_seconds(f"job {name}: {option}", value, least=least, most=_MOST_PERIOD)
        if self.every is not None and (self.has_owner or parameters):
            raise ConfigurationError(
                f"job {name} is periodic: nobody gives it arguments. To fix it: give owner=None, "
                f"and let it take none"
            )
        if self.has_owner and self._first in ("self", "cls"):
            raise ConfigurationError(
                f"job {name} needs a first parameter that names its owner, the lock id, as in "
                f"`def {self.function.__name__}(user_id, …)`"
            )
        if on_dead not in ("skip", "block"):
            raise ConfigurationError(f"job {name}: on_dead is 'skip' or 'block', not {on_dead!r}")
        if self.blocks and not self.ordered:
            raise ConfigurationError(f"job {name}: on_dead='block' is for ordered jobs of an owner")
        for tier in (self.tier, *self.retry.tiers.values()):
            if not self._waker.knows(tier):
                raise ConfigurationError(f"job {name}: the outbox has no tier {tier!r:.80}")

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.name}>"

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

        Rolled back, it never was. Run again by ndb, it is staged once. It runs at least once, after
        the commit, under the owner's lock; jobs of one owner run in the order of their commits.

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
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"job {self.name}: {error}") from None
        owner = None
        if self.has_owner:
            if self._first not in bound.arguments:
                raise TypeError(f"job {self.name}: its owner, {self._first}, is missing")
            owner = check_lock_id(bound.arguments[self._first])
        tier = self.tier if tier is None else tier
        if not self._waker.knows(tier):
            raise ValueError(f"job {self.name}: the outbox has no tier {tier!r:.80}")
        now = micros_now(self._clock)
        ready_at = now + self._delay(delay, at)
        row: Any = JobRow(
            key=new_key(owner, now, ordered=self.ordered),
            outbox=self._outbox,
            owner=owner,
            job=self.name,
            arguments=encoded(self.name, args, kwargs),
            ready_at=ready_at,
            delayed=ready_at > now,
            ordered=self.ordered,
            tier=tier,
            staged_at=now,
        )
        row.enqueue()
        row.look_when_ready()
        if not in_transaction():
            raise outside(f"job {self.name} was staged", self.name, "stage_now")
        if self._client.is_elsewhere():
            raise ConfigurationError(
                f"job {self.name} was staged in the ndb context of another database than its "
                f"outbox's, where nobody would find it. To fix it: give each database an outbox "
                f"of its own"
            )
        if dedupe is not None:
            existing = self._name(row, dedupe)
            if existing is not None:
                return StagedJob(text_of(existing), owner, duplicate=True)
        row.index = next(current_attempt().numbers)
        row.put()
        delay_seconds = (ready_at - now) / 1e6
        if delay_seconds <= _SOON:
            after_commit(lambda: self._waker.wake([Due(row.key, row.tier, delay_seconds)]))
        return StagedJob(text_of(row.key), owner)

    def stage_now(self, *args: Any, **options: Any) -> StagedJob:
        """Stage a call in a commit of its own, whatever transaction is running. As `stage`.

        The caller's transaction may still be rolled back: the job runs then all the same.
        """
        apart = ndb.TransactionOptions.INDEPENDENT
        staged: StagedJob = ndb.transaction(lambda: self.stage(*args, **options), propagation=apart)
        return staged

    def _delay(self, delay: float | datetime.timedelta | None, at: datetime.datetime | None) -> int:
        name = "delay"
        if at is not None:
            name = "the time until at"
            if delay is not None:
                raise ValueError(f"job {self.name}: give delay= or at=, not both")
            if not isinstance(at, datetime.datetime) or at.tzinfo is None:
                raise ValueError(f"job {self.name}: at must be a datetime with its time zone")
            delay = max(at.timestamp() - self._clock.wall(), 0.0)
        if isinstance(delay, datetime.timedelta):
            delay = delay.total_seconds()
        if delay is None:
            return 0
        given = check_seconds(f"job {self.name}: {name}", delay, least=0, most=MOST_DELAY)
        return round(given * 1e6)

    def _name(self, row: Any, dedupe: str) -> Any:
        """Take the name for a row; return the key of the job that has it, if one has."""
        if not isinstance(dedupe, str) or not dedupe:
            raise JobArgumentsRefused(
                f"job {self.name}: dedupe must be a text that is not empty, not {dedupe!r:.80}",
                job=self.name,
            )
        row.name = joined(self._outbox, self.name, dedupe)
        known = latest_of(row.name_key)
        if known is not None:
            return known.job_key
        NameRow(key=row.name_key, job_key=row.key).put()
        return None
