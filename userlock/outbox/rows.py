"""The rows of the outbox in Datastore.

    UserLockOwner ann                               no entity of its own: the root of the group
      UserLockJob 0006441f…                         one job; its key is its place in the queue
      UserLockJobName send_receipt:order-7          while a job with `dedupe=` has not begun
    UserLockRelay |07                               the lease of a shard

All of them are in the namespace in which the job was staged, and in which it runs.
An owner is one entity group, so a transaction pays one group more, however many
jobs it stages. A job's place among the owner's jobs is the version that Datastore
gave it in that commit, which needs no round trip and no clock (`place`). The indexes
begin with the outbox, so that outboxes of one database do not see each other's jobs,
and with a shard: no part of them has all new rows at its end. A job that is done is
deleted, one that is dead leaves that index.
"""

from __future__ import annotations

import enum
import itertools
import re
import secrets
from typing import Any

from google.cloud import ndb

from userlock.ndb.direct import Field, PackedModel
from userlock.ndb.model import Model, WriteIdProperty
from userlock.ndb.owners import joined, key_below, shard_index
from userlock.ndb.policies import WritePolicy
from userlock.ndb.provenance import version_of

#: The length of a cause, and of an error's text.
MOST_CAUSE = 300
MOST_ERROR = 2_000


class JobRow(PackedModel):
    """A job.

    Attributes:
        outbox: the name of its outbox.
        owner: the lock id; None: it has none, and is an entity group by itself.
        job: its registered name.
        arguments: as `arguments.encode` writes them.
        ready_at: when it is due, in microseconds since 1970, by the clock of who wrote that.
        delayed: whether it is not run before `ready_at`. Otherwise its commit makes it due.
        due: outbox and shard, and when the relay looks after it; None if it is dead.
        queued: the outbox while it counts in its owner's order; None otherwise.
        standing: whether it waits or runs, outbox and shard, and since or until when; None if it is
            dead. `due` does not tell: the relay pushes it back while a job waits.
        ordered: whether it waits for the owner's earlier jobs.
        place: the version of the commit that staged it; 0 until its next put.
        index: its number in that commit.
        tier: the tier by which it runs; empty for the default.
        name: the id of its `NameRow`; None if it has none.
        staged_at: in microseconds since 1970.
        attempts: the runs that have begun.
        tries: how often it was asked for again since it was last claimed, for the pauses.
        claim: the token of the worker that runs it; empty for none.
        claimed_until: when others may take it over, in microseconds since 1970.
        claimed_locked: whether that worker has the owner's lock for certain. Then another one that
            has it may take it over before.
        dead: outbox and cause, for a dead letter; None otherwise.
        died_at, redriven: when it died, and how often it was redriven.
        first_error, first_error_at, last_error, last_error_at: the errors, with their times.
    """

    _write_policy = WritePolicy.unsafe(
        "each write is fenced, or in a transaction that has read the row; workers have tokens"
    )
    _userlock_always_fenced = True
    _payload = "arguments"
    write_id = WriteIdProperty()

    data = ndb.BlobProperty()
    due = ndb.StringProperty()
    standing = ndb.ComputedProperty(lambda row: standing_of(row))
    queued = ndb.StringProperty()
    dead = ndb.StringProperty()

    outbox = Field("")
    owner = Field()
    job = Field()
    arguments = Field()
    ready_at = Field()
    delayed = Field(False)
    ordered = Field(True)
    place = Field(0)
    index = Field(0)
    tier = Field("")
    name = Field()
    staged_at = Field()
    attempts = Field(0)
    tries = Field(0)
    claim = Field("")
    claimed_until = Field(0)
    claimed_locked = Field(False)
    died_at = Field(0)
    redriven = Field(0)
    first_error = Field()
    first_error_at = Field(0)
    last_error = Field()
    last_error_at = Field(0)

    @classmethod
    def _get_kind(cls) -> str:
        return "UserLockJob"

    @property
    def name_key(self) -> Any:
        """Return the key of its `NameRow`; None if it has none."""
        if self.name is None:
            return None
        if self.owner is None:
            return ndb.Key(NameRow, self.name, namespace=self.key.namespace())
        return ndb.Key(NameRow, self.name, parent=self.key.parent())

    @property
    def rank(self) -> tuple[int, int]:
        """Return its place among the owner's jobs: by the commits that staged them."""
        return self.place or version_of(self), self.index

    def before_put(self) -> None:
        """Keep its place: a later put gives it another version."""
        self.place = self.place or version_of(self)

    def is_ready(self, micros: int) -> bool:
        """Return whether it may run at that time."""
        return not self.delayed or self.ready_at <= micros

    @property
    def cause(self) -> str:
        """Return the cause of a dead one; empty for another."""
        return "" if self.dead is None else self.dead.partition("|")[2]

    def die(self, cause: str, micros: int) -> None:
        """Note that it does not run any more."""
        self.dead, self.died_at = f"{self.outbox}|{cause}", micros
        self.look_at(None)

    def put_off_until(self, micros: int) -> None:
        """Note that it is not to run before that time."""
        self.ready_at, self.delayed = micros, True

    def enqueue(self) -> None:
        """Let it count in its owner's order, if it is ordered."""
        self.queued = self.outbox if self.ordered else None

    def look_at(self, micros: int | None) -> None:
        """Let the relay look after it at that time; None: never."""
        if micros is None:
            self.due = None
        else:
            self.due = shard_index(self.outbox, self.key, micros)

    def look_when_ready(self) -> None:
        """Let the relay look after it as soon as it may run: at once, unless it was delayed."""
        self.look_at(self.ready_at if self.delayed else 0)

    def ask_again_at(self, micros: int) -> None:
        """Note that an engine was asked for it, or is about to be, and will be again then."""
        self.tries += 1
        self.look_at(micros)

    def end_claim(self) -> None:
        """Note that no worker runs it."""
        self.claim, self.claimed_until, self.claimed_locked = "", 0, False


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
    process = ndb.TextProperty(default="")

    @classmethod
    def _get_kind(cls) -> str:
        return "UserLockRelay"


def jobs(*filters: Any, **options: Any) -> Any:
    """Return a query of jobs, in the namespace of the running code unless one is given."""
    return JobRow.query(*filters, **options)


def queued_jobs(outbox: str, root: Any) -> Any:
    """Return a query of the jobs of an owner that count in its order, some of which are dead."""
    return jobs(JobRow.queued == outbox, ancestor=root)


def dead_jobs(outbox: str, namespace: str, cause: str = "") -> Any:
    """Return a query of dead jobs, by cause: a job's name, or that and the class of its error."""
    first = f"{outbox}|{cause}"
    # No text is between a job's name and that with a blank: names are printable.
    last = f"{first}!" if cause else f"{outbox}}}"
    query = jobs(JobRow.dead >= first, JobRow.dead < last, namespace=namespace)
    return query.order(JobRow.dead, JobRow.key)


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


def is_ordered(key: Any) -> bool:
    """Return whether the job of a key waits for its owner's earlier ones."""
    return not key.id().endswith("u")


def name_of_job(outbox: str, job: str, dedupe: str) -> str:
    """Return the id of the `NameRow` of a job.

    Its key is in the group of the job's owner. For a job without one it is a group by itself.
    """
    return joined(outbox, job, dedupe)


def relay_key(outbox: str, shard: int) -> Any:
    """Return the key of a shard's lease."""
    return ndb.Key(RelayRow, f"{outbox}|{shard:02d}")


def due_jobs(outbox: str, shard: int, micros: int) -> Any:
    """Return a query of the jobs of a shard that the relay looks after by that time, in order."""
    first, last = f"{outbox}|{shard:02d}|", f"{outbox}|{shard:02d}|{micros + 1:016d}"
    return jobs(JobRow.due >= first, JobRow.due < last).order(JobRow.due)


def has_jobs(outbox: str) -> Any:
    """Return whether there are jobs that are not dead."""
    query = jobs(JobRow.due >= f"{outbox}|", JobRow.due < f"{outbox}}}")
    return query.get(keys_only=True, use_cache=False, use_global_cache=False) is not None


# --- where a job stands ---------------------------------------------------------------------------


class Standing(enum.Enum):
    """The state of a job that is not dead: the beginning of `JobRow.standing`."""

    #: Until `ready_at`, and from then on until a worker claims it.
    WAITING = "waiting"
    #: Until `claimed_until`: a worker has claimed it.
    RUNNING = "running"


def standing_of(row: Any) -> str | None:
    """Return the value of `standing` of a job."""
    if row.dead is not None:
        return None
    if row.claim:
        standing, micros = Standing.RUNNING, row.claimed_until
    else:
        standing, micros = Standing.WAITING, row.ready_at
    return shard_index(f"{standing.value}|{row.outbox}", row.key, micros)


def standing_range(
    outbox: str, standing: Standing, shard: int | None = None, micros: int | None = None
) -> tuple[str, str]:
    """Return the least value of `standing`, in one shard or all, and one above all of them.

    With a time: above all of those until then.
    """
    first = f"{standing.value}|{outbox}|"
    if shard is not None:
        first += f"{shard:02d}|"
    return first, first[:-1] + "}" if micros is None else f"{first}{micros + 1:016d}"


def standing_micros(standing: str) -> int:
    """Return the time in a value of `standing`."""
    return int(standing.rpartition("|")[2])
