"""`Quota`: the entities of an owner above a limit are flagged, soon after a change.

    handler                   Datastore                     job, under the owner's lock
    change, stamp ──────────▶ both or none; dirty, s1
                                                            reads s1; limit, select
                                                            writes the flags that differ
    change, stamp ──────────▶ dirty, s2
                              still dirty ◀──────────────── clear if the stamp is s1
                                                            (the job of s2 does it again)

The flags follow the entities: nothing is deleted or refused because of a count.
"""

from __future__ import annotations

import functools
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.apps import note_made
from userlock.arguments import check_number
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.errors import ConfigurationError, NotUnique
from userlock.ids import quoted, show_key
from userlock.lock.lease import check_lock_id
from userlock.ndb import owners
from userlock.ndb.context import current_attempt, in_transaction
from userlock.ndb.model import Model, WriteIdProperty
from userlock.ndb.policies import WritePolicy
from userlock.ndb.transactions import is_outage
from userlock.outbox.job import outside
from userlock.outbox.outbox import Outbox

log = logging.getLogger(__name__)

#: Each may have 1 MiB, and a commit 10. In the legacy mode a transaction has 25 groups.
_BATCH = 9
_NAME = re.compile(r"[\w.-]{1,60}")
#: A job that was staged no longer ago may still run by itself. In seconds.
_PATIENCE = 300.0


class QuotaRow(Model):
    """An owner's quota. In the owner's entity group.

    `changed`: the shard and the time of the last change; `dirty`: the same, until its job has run.
    """

    _write_policy = WritePolicy.IN_TRANSACTION
    _overwrites = True
    write_id = WriteIdProperty()

    owner = ndb.JsonProperty(indexed=False)
    quota = ndb.TextProperty()
    stamp = ndb.TextProperty()
    dirty = ndb.StringProperty()
    changed = ndb.StringProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "UserLockQuota"


class QuotaState(NamedTuple):
    """An owner's quota as it is now.

    Attributes:
        owner: the lock id.
        limit: None for no limit.
        counted: the number of entities that count.
        differing: the keys of those whose flag is wrong.
        dirty_seconds: since the last change, if its job has not run yet; otherwise None.
    """

    owner: str
    limit: int | None
    counted: int
    differing: list[Any]
    dirty_seconds: float | None

    @property
    def is_right(self) -> bool:
        """Return whether all flags are right, or a job that was staged lately will see to it."""
        if self.dirty_seconds is None:
            return not self.differing
        return self.dirty_seconds <= _PATIENCE


class QuotaCheck(NamedTuple):
    """The outcome of `Quota.check_recent`: numbers of owners."""

    checked: int
    stamped: int
    failed: int


class _Outdated(Exception):
    """Others have changed the owner, or counted."""


def _is_as_seen(row: Any, seen: Any) -> bool:
    """Return whether a dirty row has had no later change, and no job that came to its end."""
    return row is not None and row.stamp == seen.stamp and row.dirty is not None


class Quota:
    """A limit on an owner's entities: those above it are flagged.

        projects = Quota(
            "projects", outbox,
            limit=lambda user_id: 3,
            select=lambda user_id: Project.query(
                Project.archived == False, ancestor=ndb.Key(User, user_id)
            ).order(Project.created),
            flag="over_quota",
        )

        @userlock.transactional
        def archive(user_id, key):
            project = key.get()
            project.archived = True
            project.put()
            projects.stamp(user_id)

    Each change stamps the owner in its own transaction: one put and one staged job, without a
    look-up. The job counts, and writes the flags that differ. New entities start with the flag
    False. If changes and jobs meet, the last job is right. An entity that no longer counts keeps
    its flag: the code that makes it count again must reset it.

    Limit: queries without an ancestor may be outdated in the legacy mode of concurrency, and the
    flags with them, until `check_recent`.

    Args:
        name: part of stored data, and of the job's name.
        outbox: runs the job `userlock.quota:NAME`.
        limit: returns the limit of an owner, None for none. Called in the job.
        select: returns the entities of an owner that count, those to keep first. Called in the job.
        flag: the name of their property, a `BooleanProperty`.
        clock: for all times.
    """

    def __init__(
        self,
        name: str,
        outbox: Outbox,
        *,
        limit: Callable[[str], int | None],
        select: Callable[[str], Iterable[Any]],
        flag: str = "over_quota",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"a quota's name has 1 to 60 letters, digits, and . _ -, not {name!r:.99}"
            )
        if not isinstance(flag, str) or not flag.isidentifier():
            raise ConfigurationError(f"quota {name}: flag names a property, not {flag!r:.80}")
        if not isinstance(outbox, Outbox):
            raise ConfigurationError(f"quota {name}: {outbox!r:.80} is no userlock.outbox.Outbox")
        for function in (limit, select):
            if not callable(function):
                raise ConfigurationError(f"quota {name}: {function!r:.80} is no function")
        self.name = name
        self._outbox = outbox
        self._limit = limit
        self._select = select
        self._flag = flag
        self._clock = clock
        self._job = outbox.job(name=f"userlock.quota:{name}")(self.recount)
        note_made(self)

    def stamp(self, owner: str) -> None:
        """Note a change of an owner (a lock id), in the running transaction, and stage the job.

        Raises:
            JobStagedOutside: there is no transaction; see `stamp_now`.
        """
        if not in_transaction():
            raise outside(f"quota {self.name} was stamped", self._job.name, "stamp_now")
        owner = check_lock_id(owner)
        key = self._key(owner)
        if key in current_attempt().latest:
            return  # by an earlier change of this transaction
        now = owners.shard_index(self.name, key, owners.micros_now(self._clock))
        stamp = secrets.token_hex(8)
        QuotaRow(key=key, owner=owner, quota=self.name, stamp=stamp, dirty=now, changed=now).put()
        self._job.stage(owner)

    def stamp_now(self, owner: str) -> None:
        """Note a change in a commit of its own, such as one of the owner's plan."""
        apart = ndb.TransactionOptions.INDEPENDENT
        ndb.transaction(lambda: self.stamp(owner), propagation=apart)

    def recount(self, owner: str) -> int:
        """Write the flags that differ, if a change was noted. Returns how many.

        To be called in an ndb context, under the owner's lock, as the job is.
        """
        row = self._key(owner).get(use_cache=False, use_global_cache=False)
        if row is None or row.dirty is None:
            return 0
        try:
            written = self._write(self._wanted(owner)[1], row)
        except _Outdated:  # a later job counts again, or has done so
            return 0
        self._clear(row)
        return written

    def _wanted(self, owner: str) -> tuple[int | None, dict[Any, bool], int]:
        """Return the limit, the flags of the entities whose flag differs, and the number of all."""
        limit = self._limit(owner)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise TypeError(
                f"quota {self.name}: limit gave {limit!r:.80}, no whole number and not None"
            )
        differing: dict[Any, bool] = {}
        seen: set[Any] = set()
        for entity in self._select(owner):
            if entity.key in seen:  # two queries may give it
                continue
            over = limit is not None and len(seen) >= limit
            seen.add(entity.key)
            if bool(getattr(entity, self._flag)) is not over:
                differing[entity.key] = over
        return limit, differing, len(seen)

    def _write(self, flags: dict[Any, bool], seen: Any) -> int:
        """Write flags, some in each transaction; each by itself if one entity cannot be put.

        `_Outdated`: the owner's row has changed.
        """
        keys, written = list(flags), 0
        for first in range(0, len(keys), _BATCH):
            some = {key: flags[key] for key in keys[first : first + _BATCH]}
            try:
                written += ndb.transaction(functools.partial(self._write_batch, some, seen))
            except NotUnique as error:
                if len(some) > 1:
                    written += sum(self._write({key: some[key]}, seen) for key in some)
                else:
                    log.warning("quota %s leaves a flag as it is: %s", self.name, error)
        return written

    def _write_batch(self, flags: dict[Any, bool], seen: Any) -> int:
        """Write flags in the running transaction, which fails if there is a change meanwhile:

        this job                        another job
        reads s1; selects
        (paused; its lock is lost)      reads s2; writes flags; clears
        would write its old flags
        """
        if not _is_as_seen(seen.key.get(), seen):
            raise _Outdated
        found = [entity for entity in ndb.get_multi(list(flags)) if entity is not None]
        changed = [each for each in found if bool(getattr(each, self._flag)) is not flags[each.key]]
        for entity in changed:
            setattr(entity, self._flag, flags[entity.key])
        ndb.put_multi(changed)
        return len(changed)

    def _clear(self, seen: Any) -> None:
        """Note that the flags are right, unless there was a change since the row was read."""

        def clear() -> None:
            row = seen.key.get()
            if _is_as_seen(row, seen):
                row.dirty = None
                row.put()

        ndb.transaction(clear)

    def state(self, owner: str) -> QuotaState:
        """Return an owner's quota, and the entities whose flag is wrong. In an ndb context."""
        row = self._key(owner).get(use_cache=False, use_global_cache=False)
        dirty = None
        if row is not None and row.dirty is not None:
            since = int(row.dirty.rpartition("|")[2])
            dirty = max(0.0, (owners.micros_now(self._clock) - since) / 1e6)
        limit, differing, counted = self._wanted(owner)
        return QuotaState(owner, limit, counted, list(differing), dirty)

    def owners(self, hours: float = 26.0) -> Iterator[str]:
        """Give the owners that are dirty, and those stamped within some hours.

        In an ndb context; of its namespace.
        """
        check_number("hours", hours, least=0, most=1e6)
        return self._owners(owners.current_namespace(), hours)

    def _owners(self, namespace: str, hours: float) -> Iterator[str]:
        since = owners.micros_now(self._clock) - round(hours * 3_600e6)
        dirty: set[Any] = set()
        for index, first in ((QuotaRow.dirty, 0), (QuotaRow.changed, since)):
            for shard in range(owners.SHARDS):
                place = index, QuotaRow, self.name, shard
                query = owners.shard_query(*place, since=first, namespace=namespace)
                for key in query.iter(keys_only=True):  # a malformed row is its owner's error
                    if key in dirty:
                        continue
                    if index is QuotaRow.dirty:
                        dirty.add(key)
                    try:
                        owner = owners.owner_of(key.root()) or key.get(use_cache=False).owner
                    except Exception as error:
                        if is_outage(error):
                            raise
                        log.exception("quota %s: %s cannot be read", self.name, show_key(key))
                    else:
                        yield owner

    def check_recent(
        self, hours: float = 26.0, *, stopped: Callable[[], bool] = lambda: False
    ) -> QuotaCheck:
        """Check the owners that were stamped within some hours; stamp those that are not right.

        Those of all namespaces. To be called each night, in an ndb context. It repairs what a lost
        job, an outdated query or another program has left. An owner's error is logged, and stops no
        others.

        Args:
            hours: a little more than the time between two calls.
            stopped: whether to end, asked before each owner.

        Raises:
            GoogleAPIError: Datastore does not answer.
        """
        checked = stamped = failed = 0
        for namespace in owners.namespaces():
            with owners.in_namespace(namespace):
                for owner in self.owners(hours):
                    if stopped():
                        return QuotaCheck(checked, stamped, failed)
                    checked += 1
                    try:
                        if not self.state(owner).is_right:
                            self.stamp_now(owner)
                            stamped += 1
                    except Exception as error:
                        if is_outage(error):
                            raise
                        failed += 1
                        log.exception("quota %s of %s cannot be checked", self.name, quoted(owner))
        return QuotaCheck(checked, stamped, failed)

    def context(self) -> Any:
        """Open an ndb context of the outbox's client, where none is open."""
        return self._outbox.context()

    def _key(self, owner: str) -> Any:
        root = owners.owner_key(check_lock_id(owner))
        return ndb.Key(QuotaRow, owners.name_of(self.name), parent=root)
