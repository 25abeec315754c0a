"""The entities of a run: counters that record their last write, and single entries."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from google.cloud import ndb

import userlock
from tests.chaos.record import Stored, StoredJobs
from userlock.outbox.arguments import decode
from userlock.outbox.rows import JobRow, NameRow


class Counter(userlock.UserModel):
    """A counter below its user. Each write stores its id."""

    _lock_id_from_key = userlock.root_id
    _before_put: Callable[[], None] | None = None

    count = ndb.IntegerProperty(default=0)
    last = ndb.StringProperty()

    def before_next_put(self, action: Callable[[], None]) -> None:
        """Run the action in the hook of the next put only."""
        self._before_put = action

    def _pre_put_hook(self) -> None:
        action, self._before_put = self._before_put, None
        if action is not None:
            action()

    @classmethod
    def _get_kind(cls) -> str:
        return "TrialCounter"


class MarkedCounter(Counter):
    """A counter whose writes are recognised after a lost reply."""

    write_id = userlock.WriteIdProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TrialMarkedCounter"


class Entry(userlock.UserModel):
    """An entity with an automatic id that is never changed."""

    _lock_id_from_key = userlock.root_id

    write = ndb.StringProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TrialEntry"


class Ledger(userlock.UserModel):
    """The jobs of a user that have taken effect, in that order. Each appends its id."""

    _lock_id_from_key = userlock.root_id

    done = ndb.TextProperty(repeated=True)

    @classmethod
    def of(cls, user: str) -> Ledger:
        """Return a user's ledger, a new one if there is none."""
        key = ndb.Key(cls, "ledger", parent=user_key(user))
        return key.get() or cls(key=key)

    @classmethod
    def _get_kind(cls) -> str:
        return "TrialLedger"


def user_key(user: str) -> Any:
    """Return the parent key of all of a user's entities."""
    return ndb.Key("TrialUser", user)


def model_of(entity: str) -> type[Counter]:
    """Return the class of "user/counter"."""
    return MarkedCounter if entity.partition("/")[2].startswith("m") else Counter


def key_of(entity: str) -> Any:
    """Return the key of "user/counter", or of a child, "user/counter.child"."""
    user, _, names = entity.partition("/")
    key = user_key(user)
    for name in names.split("."):
        key = ndb.Key(model_of(entity), name, parent=key)
    return key


def name_of(key: Any) -> str:
    """Return the name of this key."""
    return f"{key.root().id()}/{'.'.join(key.flat()[3::2])}"


def child_of(entity: str) -> str:
    """Return the name of a counter's possible child."""
    return f"{entity}.child"


def other_name_of(entity: str) -> str:
    """Return the name that a counter may be renamed to."""
    return f"{entity}-other"


def stored_counters() -> dict[str, Stored]:
    """Return all counters as now stored in Datastore, by name."""
    return {
        name_of(each.key): Stored(last=each.last, count=each.count)
        for each in itertools.chain(Counter.query(), MarkedCounter.query())
    }


def stored_entries() -> list[str]:
    """Return the writes of all entries as now stored in Datastore."""
    return [each.write for each in Entry.query().fetch()]


def stored_jobs() -> StoredJobs:
    """Return the effects of all jobs, and what is left of them."""
    dead = [row for row in JobRow.query().fetch() if row.dead is not None]
    return StoredJobs(
        ledgers={name_of(each.key).partition("/")[0]: each.done for each in Ledger.query()},
        dead={_staging_of(row): row.attempts for row in dead},
        unfinished=[_staging_of(row) for row in unfinished_jobs()],
        names=[row.key.id() for row in NameRow.query().fetch()],
    )


def unfinished_jobs() -> list[Any]:
    """Return the rows of jobs that are neither done nor dead."""
    return [row for row in JobRow.query().fetch(use_cache=False) if row.dead is None]


def _staging_of(row: Any) -> str:
    (_, staging), kwargs = decode(row.arguments)
    assert kwargs.keys() == {"pause", "failures"}
    return str(staging)
