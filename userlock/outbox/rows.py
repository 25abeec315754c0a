"""The rows of the outbox in Datastore.

    UserLockOwner ann                               no entity of its own: the root of the group
      UserLockJob 0006441f…                         one job
      UserLockJobName send_receipt:order-7          while a job with `dedupe=` has not begun
    UserLockRelay |07                               the lease of a shard
    UserLockPeriod |nightly                         a periodic job, in the default namespace

All others are in the namespace in which the job was staged, and in which it runs. An owner is one
entity group, so a transaction pays one group more, however many jobs it stages. A job's place among
the owner's jobs is the version that Datastore gave it in that commit, which needs no round trip and
no clock (`place`). The indexes begin with the outbox, so that outboxes of one database do not see
each other's jobs, and with a shard, so that none has all new rows at its end. A job that is done is
deleted, one that is dead leaves that index.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from google.api_core.exceptions import InvalidArgument
from google.cloud import ndb
from google.cloud.ndb.exceptions import BadValueError

from userlock.arguments import check_kind
from userlock.errors import JobArgumentsRefused, LockIdError
from userlock.ids import quoted
from userlock.json_values import check, written
from userlock.ndb.client import is_foreign
from userlock.ndb.direct import Field, PackedModel
from userlock.ndb.model import Model, WriteIdProperty
from userlock.ndb.owners import (
    OwnerRow,
    is_below_root,
    is_root_of,
    key_below,
    owner_of,
    shard_index,
    shard_query,
)
from userlock.ndb.policies import WritePolicy
from userlock.ndb.provenance import version_of
from userlock.words import legible

log = logging.getLogger(__name__)

#: The length of a cause, and of an error's text.
_MOST_CAUSE = 300
MOST_ERROR = 2_000
#: Of arguments. An entity has at most 1 MiB; the rest is room for other properties and two errors.
_MOST_BYTES = 900_000

#: The beginnings of `JobRow.standing`: waiting until `ready_at`, and from then on until a worker
#: claims it; running until `claimed_until`.
WAITING, RUNNING = "waiting", "running"


def _standing_of(row: Any) -> str | None:
    if row.dead is not None:
        return None
    standing, micros = (RUNNING, row.claimed_until) if row.claim else (WAITING, row.ready_at)
    return shard_index(f"{standing}|{row.outbox}", row.key, micros)


class JobRow(PackedModel):
    """A job. Times are in microseconds since 1970."""

    _write_policy = WritePolicy.unsafe(
        "each write is fenced, or in a transaction that has read the row; workers have tokens"
    )
    _userlock_always_fenced = True
    _payload = "arguments"
    write_id = WriteIdProperty()

    data = ndb.BlobProperty()
    due = ndb.StringProperty()  # outbox, shard, and when the relay looks after it; None if dead
    #: Waiting or running, outbox, shard, and since or until when; None if it is dead. `due` does
    #: not tell: the relay pushes it back while a job waits.
    standing = ndb.ComputedProperty(_standing_of)
    queued = ndb.StringProperty()  # the outbox while it counts in its owner's order
    dead = ndb.StringProperty()  # outbox and cause, of a dead letter

    outbox = Field("")
    owner = Field()  # the lock id; None: it has none, and is an entity group by itself
    job = Field()
    arguments = Field()  # as `encoded` writes them
    ready_at = Field()  # when it is due, by the clock of who wrote that
    delayed = Field(False)  # whether it is not run before; otherwise its commit makes it due
    ordered = Field(True)  # whether it waits for the owner's earlier jobs
    place = Field(0)  # the version of the commit that staged it; 0 until its next put
    index = Field(0)  # its number in that commit
    tier = Field("")
    name = Field()  # the id of its `NameRow`, if it has one
    staged_at = Field()
    attempts = Field(0)  # the runs that have begun
    tries = Field(0)  # how often it was asked for again since the last claim, for the pauses
    claim = Field("")  # the token of the worker that runs it; empty for none
    claimed_until = Field(0)  # when others may take it over
    #: Whether that worker has the owner's lock for certain. Then another one that has it may take
    #: the job over before.
    claimed_locked = Field(False)
    unknown_since = Field(0)  # when a worker that does not know the job first had it; 0: one knew
    died_at = Field(0)
    redriven = Field(0)  # how often it was
    first_error = Field()
    first_error_at = Field(0)
    last_error = Field()
    last_error_at = Field(0)

    @classmethod
    def _get_kind(cls) -> str:
        return "UserLockJob"

    @property
    def name_key(self) -> Any:
        if self.name is None:
            return None
        parent = None if self.owner is None else self.key.parent()
        return ndb.Key(NameRow, self.name, parent=parent, namespace=self.key.namespace())

    @property
    def rank(self) -> tuple[int, int]:
        """Return its place among the owner's jobs: by the commits that staged them."""
        return self.place or version_of(self), self.index

    def _prepare_for_put(self) -> None:
        self.place = self.place or version_of(self)  # a later put gives it another version
        super()._prepare_for_put()

    def is_ready(self, micros: int) -> bool:
        return not self.delayed or self.ready_at <= micros

    @property
    def cause(self) -> str:
        """Return the cause of a dead one; empty for another."""
        return "" if self.dead is None else self.dead.partition("|")[2]

    def die(self, cause: str, micros: int) -> None:
        self.dead, self.died_at = _dead(self.outbox, cause), micros
        self.look_at(None)

    def put_off_until(self, micros: int) -> None:
        self.ready_at, self.delayed = micros, True

    def enqueue(self) -> None:
        """Let it count in its owner's order, if it is ordered."""
        self.queued = self.outbox if self.ordered else None

    def look_at(self, micros: int | None) -> None:
        """Let the relay look after it at that time; None: never."""
        self.due = None if micros is None else shard_index(self.outbox, self.key, micros)

    def look_when_ready(self) -> None:
        """Let the relay look after it as soon as it may run: at once, unless it was delayed."""
        self.look_at(self.ready_at if self.delayed else 0)

    def ask_again_at(self, micros: int) -> None:
        """Note that an engine was asked for it, or is about to be, and will be again then."""
        self.tries += 1
        self.look_at(micros)


class NameRow(Model):
    """The name of a job with `dedupe=` that has not begun: a second one is not staged."""

    _write_policy = WritePolicy.IN_TRANSACTION
    write_id = WriteIdProperty()
    job_key = ndb.KeyProperty(indexed=False)

    @classmethod
    def _get_kind(cls) -> str:
        return "UserLockJobName"


class RelayRow(Model):
    """The lease of a shard. `token`: of the relay that has it, `until` when, in microseconds."""

    _write_policy = WritePolicy.unsafe("each write is fenced")
    _userlock_always_fenced = True
    write_id = WriteIdProperty()
    token = ndb.TextProperty(default="")
    until = ndb.IntegerProperty(indexed=False, default=0)

    @classmethod
    def _get_kind(cls) -> str:
        return "UserLockRelay"


class PeriodRow(Model):
    """A periodic job. `period`: the beginning of the one for which it was staged.

    In microseconds, as the job may have periods of another length in the next version of the app.
    """

    _write_policy = WritePolicy.IN_TRANSACTION
    write_id = WriteIdProperty()
    period = ndb.IntegerProperty(indexed=False)

    @classmethod
    def _get_kind(cls) -> str:
        return "UserLockPeriod"


# --- malformed rows -----------------------------------------------------------------------------

#: The errors of a malformed row: of Python, ndb, the lock and Datastore.
OF_ROW = (
    *(TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError),
    *(BadValueError, LockIdError, InvalidArgument),
)
#: The types of the fields that have None as their default; all others have that of theirs.
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("owner", "name", "first_error", "last_error"), str | None),
    "job": str,
    "arguments": bytes,
    "ready_at": int,
    "staged_at": int,
}
#: More than a time or a version, in microseconds. An index has room for 16 digits.
_TOO_MUCH = 10**16


def flaw_of(row: Any) -> str:
    """Return what is malformed in a row, in a word; empty if it is whole."""
    try:
        fields: dict[str, Any] = row.fields
        defaults = JobRow().fields
        for name, value in fields.items():
            right = isinstance(value, _TYPES.get(name) or type(defaults[name]))
            if not right or (isinstance(value, int) and not 0 <= value < _TOO_MUCH):
                return name
        return "" if is_root_of(row.key.root(), row.owner) else "owner"
    except OF_ROW as error:
        return type(error).__name__


def report(key: Any, done: str, flaw: str) -> None:
    """Log that something was not done to a job, as its row is malformed."""
    # Without an error's text, which may quote the row.
    log.error(
        "job %s of %s was not %s: its row is malformed (%s). To fix it: repair or delete the "
        "entity in Datastore",
        key.id(),
        quoted(owner_of(key.root()) or "?"),
        done,
        flaw,
    )


# --- queries ------------------------------------------------------------------------------------


#: Makes a query of jobs, in the namespace of the running code unless one is given.
jobs: Any = JobRow.query


def queued_jobs(outbox: str, root: Any) -> Any:
    """Return a query of the jobs of an owner that count in its order, some of which are dead."""
    return jobs(JobRow.queued == outbox, ancestor=root)


def _dead(outbox: str, cause: str) -> str:
    return f"{outbox}|{legible(cause, _MOST_CAUSE)}"


def dead_jobs(outbox: str, namespace: str, cause: str = "", **options: Any) -> Any:
    """Return a query of dead jobs, by cause: a job's name, or that and the class of its error."""
    check_kind("cause", cause, str, "a str")
    first = _dead(outbox, cause)
    # No text is between a job's name and that with a blank: names are printable.
    last = f"{first}!" if cause else f"{outbox}}}"
    query = jobs(JobRow.dead >= first, JobRow.dead < last, namespace=namespace, **options)
    return query.order(JobRow.dead, JobRow.key)


def due_jobs(outbox: str, shard: int, micros: int) -> Any:
    """Return a query of the jobs of a shard that the relay looks after by that time, in order."""
    return shard_query(JobRow.due, JobRow, outbox, shard, before=micros + 1)


def has_jobs(outbox: str) -> Any:
    query = shard_query(JobRow.due, JobRow, outbox)
    return query.get(keys_only=True, use_cache=False, use_global_cache=False) is not None


# --- keys ---------------------------------------------------------------------------------------


_numbers = itertools.count(1)


def new_key(owner: str | None, micros: int, *, ordered: bool = True) -> Any:
    """Return a key for a new job of an owner, staged then by the clock here.

    Those of one process are ascending, even if its clock stands still. It tells whether the job
    waits for earlier ones.
    """
    name = f"{micros:016x}{next(_numbers) & 0xFFFFFFFF:08x}{secrets.token_hex(4)}"
    return key_below(owner, JobRow, name if ordered else f"{name}u")


def is_name(name: object) -> bool:
    """Return whether a key of `new_key` could end with that."""
    return isinstance(name, str) and re.fullmatch("[0-9a-f]{32}u?", name) is not None


def job_key(text: str) -> Any:
    """Return the key of a job from its text. ValueError: it is none."""
    try:
        key = ndb.Key(urlsafe=text.encode("ascii"))
        path = key.flat()
    except Exception:
        raise ValueError(f"{text!r:.80} is no key of a job") from None
    kinds = (OwnerRow._get_kind(), JobRow._get_kind())
    if path[::2] != kinds or not is_below_root(key) or not is_name(path[3]):
        raise ValueError(f"{text[:80]!r} is the key of something else than a job")
    return key


def own_job_key(text: str) -> Any:
    """Return the key of a job in the database of the ndb context. ValueError: it is none."""
    key = job_key(text)
    if is_foreign(key):
        raise ValueError(f"{text[:80]!r} is a key of another database")
    return key


def is_ordered(key: Any) -> bool:
    return not key.id().endswith("u")


# --- arguments ----------------------------------------------------------------------------------


def encoded(job: str, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
    """Return the arguments of a call as JSON.

    Raises:
        JobArgumentsRefused: a value that JSON would not give back as it is, or too many bytes.
    """
    try:
        for position, value in enumerate(args):
            check(value, f"argument {position + 1}", sequences=(list,))
        for name, value in kwargs.items():
            check(value, name, sequences=(list,))
        document = written([list(args), dict(kwargs)])
    except ValueError as error:
        raise JobArgumentsRefused(
            f"job {job} cannot carry its arguments as JSON: {error}. To fix it: pass strings, "
            f"finite numbers, booleans, None, lists and dicts (of an entity its id, of a time its "
            f"isoformat())",
            job=job,
        ) from None
    if len(document) > _MOST_BYTES:
        raise JobArgumentsRefused(
            f"the arguments of job {job} have {len(document):,} bytes as JSON; the most is "
            f"{_MOST_BYTES:,}. To fix it: store the data in an entity, and pass its id",
            job=job,
        )
    return document


def decoded(arguments: bytes) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments. ValueError: `encoded` has not written that."""
    try:
        match json.loads(arguments):
            case [list(args), dict(kwargs)]:
                return args, kwargs
    except RecursionError:
        pass
    raise ValueError("the row has no arguments")
