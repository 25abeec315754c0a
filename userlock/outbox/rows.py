"""The rows of the outbox in Datastore.

    UserLockOwner ann                               no entity of its own: the root of the group
      UserLockJob 0006441f…                         one job; its key is its place in the queue
      UserLockJobName send_receipt:order-7          while a job with `dedupe=` has not begun
    UserLockRelay 07                                the lease of a shard

An owner is one entity group, so a transaction pays one group more, however many
jobs it stages. A job's key begins with the time when it is due; its place among
the owner's jobs is the version that Datastore gave it in that commit, which
needs no round trip (`place`). The index of `due` begins with a shard: no part of
it has all new rows at its end. A job that is done is deleted, one that is dead
leaves that index.
"""

from __future__ import annotations

import enum
import itertools
import secrets
from typing import Any

from google.cloud import ndb

from userlock.ndb.model import Model, WriteIdProperty
from userlock.ndb.owners import name_of, owner_key, shard_of
from userlock.ndb.policies import WritePolicy
from userlock.ndb.provenance import version_of

#: The length of a cause, and of an error's text.
MOST_CAUSE = 300
MOST_ERROR = 2_000


class JobRow(Model):
    """A job.

    Attributes:
        owner: the lock id.
        namespace: in which it was staged, and runs. All rows are in the default one.
        job: its registered name.
        arguments: as `arguments.encode` writes them.
        ready_at: not run before, in microseconds since 1970.
        due: the shard, and when the relay looks after it; None if it is dead.
        queued: True while it counts in its owner's order; None otherwise.
        standing: whether it waits or runs, the shard, and since or until when; None if it is dead.
            `due` does not tell: the relay pushes it back while a job waits.
        ordered: whether it waits for the owner's earlier jobs.
        place: the version of the commit that staged it; 0 until its next put.
        index: its number in that commit.
        tier: the tier by which it runs; empty for the default.
        dedupe: the name of its `NameRow`; empty for none.
        staged_at: in microseconds since 1970.
        attempts: the runs that have begun.
        wakes: how often an engine may have been asked, for the names of messages: never less.
        tries: how often it was asked for again since it was last claimed, for the pauses.
        claim: the token of the worker that runs it; empty for none.
        claimed_until: when others may take it over, in microseconds since 1970.
        claimed_locked: whether that worker has the owner's lock for certain. Then another one that
            has it may take it over before.
        dead: the cause, for a dead letter; None otherwise.
        died_at, redriven: when it died, and how often it was redriven.
        first_error, first_error_at, last_error, last_error_at: the errors, with their times.
    """

    _write_policy = WritePolicy.IN_TRANSACTION
    write_id = WriteIdProperty()

    owner = ndb.JsonProperty(indexed=False)
    namespace = ndb.TextProperty(default="")
    job = ndb.TextProperty()
    arguments = ndb.BlobProperty()
    ready_at = ndb.IntegerProperty(indexed=False)
    due = ndb.StringProperty()
    standing = ndb.ComputedProperty(lambda row: standing_of(row))
    queued = ndb.BooleanProperty()
    ordered = ndb.BooleanProperty(indexed=False, default=True)
    place = ndb.IntegerProperty(indexed=False, default=0)
    index = ndb.IntegerProperty(indexed=False, default=0)
    tier = ndb.TextProperty(default="")
    dedupe = ndb.TextProperty(default="")
    staged_at = ndb.IntegerProperty(indexed=False)
    attempts = ndb.IntegerProperty(indexed=False, default=0)
    wakes = ndb.IntegerProperty(indexed=False, default=0)
    tries = ndb.IntegerProperty(indexed=False, default=0)
    claim = ndb.TextProperty(default="")
    claimed_until = ndb.IntegerProperty(indexed=False, default=0)
    claimed_locked = ndb.BooleanProperty(indexed=False, default=False)
    dead = ndb.StringProperty()
    died_at = ndb.IntegerProperty(indexed=False, default=0)
    redriven = ndb.IntegerProperty(indexed=False, default=0)
    first_error = ndb.TextProperty()
    first_error_at = ndb.IntegerProperty(indexed=False, default=0)
    last_error = ndb.TextProperty()
    last_error_at = ndb.IntegerProperty(indexed=False, default=0)

    @classmethod
    def _get_kind(cls) -> str:
        return "UserLockJob"

    @property
    def rank(self) -> tuple[int, int]:
        """Return its place among the owner's jobs: by the commits that staged them."""
        return self.place or version_of(self), self.index

    def _pre_put_hook(self) -> None:
        """Keep its place: a later put gives it another version."""
        self.place = self.place or version_of(self)

    def look_at(self, micros: int | None) -> None:
        """Let the relay look after it at that time; None: never."""
        self.due = None if micros is None else due_index(self.key, micros)

    def ask_again_at(self, micros: int) -> None:
        """Note that an engine was asked for it, or is about to be, and will be again then."""
        self.wakes += 1
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

    _write_policy = WritePolicy.IN_TRANSACTION
    write_id = WriteIdProperty()
    token = ndb.TextProperty(default="")
    until = ndb.IntegerProperty(indexed=False, default=0)
    process = ndb.TextProperty(default="")

    @classmethod
    def _get_kind(cls) -> str:
        return "UserLockRelay"


def jobs(*filters: Any, **options: Any) -> Any:
    """Return a query of jobs, in the namespace of all rows."""
    return JobRow.query(*filters, namespace="", **options)


def dead_jobs(cause: str = "") -> Any:
    """Return a query of dead jobs, by cause: a job's name, or that and the class of its error."""
    query = jobs(JobRow.dead > "")
    if cause:
        # No text is between a job's name and that with a blank: names are printable.
        query = jobs(JobRow.dead >= cause, JobRow.dead < cause + "!")
    return query.order(JobRow.dead, JobRow.key)


# --- keys ---------------------------------------------------------------------------------------


_numbers = itertools.count(1)


def new_key(owner: str, micros: int) -> Any:
    """Return a key for a new job of an owner that is due then.

    Those of one process are ascending, even if its clock stands still.
    """
    name = f"{micros:016x}{next(_numbers) & 0xFFFFFFFF:08x}{secrets.token_hex(4)}"
    return ndb.Key(JobRow, name, parent=owner_key(owner))


def name_key(owner: str, job: str, dedupe: str) -> Any:
    """Return the key of the name of a job."""
    return ndb.Key(NameRow, name_of(f"{job}:{dedupe}"), parent=owner_key(owner))


def relay_key(shard: int) -> Any:
    """Return the key of a shard's lease."""
    return ndb.Key(RelayRow, f"{shard:02d}", namespace="")


def due_index(key: Any, micros: int) -> str:
    """Return the value of `due` for a job at a time."""
    return f"{shard_of(key):02d}|{max(micros, 0):016d}"


def due_before(shard: int, micros: int) -> tuple[str, str]:
    """Return the least value of `due` in a shard, and the first after that time."""
    return f"{shard:02d}|", f"{shard:02d}|{micros + 1:016d}"


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
        return standing_index(Standing.RUNNING, shard_of(row.key), row.claimed_until)
    return standing_index(Standing.WAITING, shard_of(row.key), row.ready_at)


def standing_index(standing: Standing, shard: int, micros: int) -> str:
    """Return the value of `standing` at a time."""
    return f"{standing.value}|{shard:02d}|{max(micros, 0):016d}"


def standing_range(standing: Standing, shard: int | None = None) -> tuple[str, str]:
    """Return the least value of `standing`, in one shard or all, and one above all of them."""
    first = f"{standing.value}|" if shard is None else f"{standing.value}|{shard:02d}|"
    return first, first[:-1] + "}"


def standing_micros(standing: str) -> int:
    """Return the time in a value of `standing`."""
    return int(standing.rpartition("|")[2])
