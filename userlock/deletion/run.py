"""One run of a deletion's job: batches, bottom-up, with pauses for requests that wait.

Each batch is one transaction. It looks again, so that it holds without the lock:

- An entity that was moved away stays, with all that is below it; and another owner's that names one
  of the tree, as this job has neither its lock nor its owner's word.
- An entity stays, for the next pass, if something was added below it that only it leads to.
- Everything stays once there is a new root under the key of the deleted one.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from google.api_core.exceptions import InvalidArgument
from google.cloud import ndb

from userlock import errors
from userlock.clock import Clock
from userlock.deletion.walk import Found, Walk
from userlock.ids import show_key
from userlock.lock.api import global_lock
from userlock.ndb.client import DATASTORE_ERRORS
from userlock.ndb.context import current_context
from userlock.ndb.hooks import delete
from userlock.ndb.lock_ids import lock_id_of, names_lock
from userlock.ndb.owners import micros_now, moment_of
from userlock.ndb.patches import kind_of
from userlock.ndb.provenance import version_of
from userlock.ndb.transactions import call_to_end, undisguised
from userlock.outbox.job import Job
from userlock.words import legible

log = logging.getLogger(__name__)

# All times are in seconds.
#: A run ends so long after it has first deleted something, and stages the next one.
RUN_SECONDS = 20.0
#: A run that deletes nothing fails after so long.
FRUITLESS_SECONDS = 120.0
#: The shortest time between two checkpoints of one batch.
_CHECKPOINT_SECONDS = 0.1
#: A batch ends after so long if assets are slow to go.
_BATCH_SECONDS = 0.5
#: The time between two reports of a run's progress.
_REPORT_SECONDS = 2.0
#: The passes of one run, and the pause before the next run if the last pass has found something.
_MOST_PASSES = 5
_PASSES_PAUSE = 30.0
#: The pause if the lock was not given back in time.
_BUSY_PAUSE = 5.0
#: So many entities that cannot be deleted end a run.
_MOST_KEPT = 1_000
_MOST_ERROR = 500


class Plan(NamedTuple):
    """The parts of a tree that a run needs: see `Tree`.

    `children`: by the kind of the parent, the child models, and the names of their properties.
    """

    children: Mapping[str, list[tuple[Any, str]]]
    assets: Mapping[Any, Callable[[Any], object]]
    batch: int
    keep_days: float | None
    clock: Clock


class _Superseded(Exception):
    """There is a new root under the key of the deleted one."""


class _RefusedInTransactions(Exception):
    """Queries by a property are refused in transactions, as in the legacy mode."""


class _Over(Exception):
    """The run has taken long enough."""


#: The lock is not held any more: the next run goes on.
_LOCK_GONE = (
    errors.LockTimeout,
    errors.LockServiceUnavailable,
    errors.LockNotHeld,
    errors.LeaseRanOut,
    errors.LeaseWasLost,
)


@dataclasses.dataclass
class Run:
    """One run. `key`: of the deletion's row."""

    _plan: Plan
    _job: Job[..., Any]
    _owner: str
    _key: Any

    def __post_init__(self) -> None:
        self._walk = Walk(self._plan.children, self._plan.batch, self._checkpoint)
        self._deleted = 0
        #: Whether this run has deleted something.
        self._fruitful = False
        #: Whether this pass has left an entity for the next one.
        self._left_some = False
        #: Whether queries by a property come before the transaction; None: not known yet.
        self._asks_outside: bool | None = None
        #: Other owners' entities that name one of the tree: they stay, and hold nothing up.
        self._foreign: set[Any] = set()
        #: Entities that have to stay: they, or some below them, cannot be deleted.
        self._kept: set[Any] = set()
        self._error = ""
        self._root: Any = None
        self._root_version = 0
        now = self._plan.clock.now()
        self._ends = now + FRUITLESS_SECONDS
        self._reported = self._yielded = now

    def run(self) -> None:
        """Delete what is there, for some seconds. Under the owner's lock, in an ndb context."""
        # Entities that are read or deleted must not stay in memory.
        with current_context().new(cache_policy=lambda key: False).use():
            row = self._row()
            if row is None or row.ended_at:
                return
            self._root, self._root_version = row.root, row.root_version
            try:
                pause = self._passes()
            except _Superseded:
                self._end(None, superseded=True)
                return
            except _LOCK_GONE as error:
                log.info("a deletion pauses: %s", error)
                pause = _BUSY_PAUSE  # others may have the lock
            if pause == 0 and not self._fruitful:
                self._error = self._error or f"nothing was deleted in {FRUITLESS_SECONDS:.0f} s"
            if self._error and (pause is None or self._keeps_too_many or not self._fruitful):
                self._report()
                raise errors.DeletionIncomplete(
                    f"{len(self._kept):,} entities of the deletion of {show_key(self._root)} have "
                    f"to stay: {self._error}",
                    job=self._job.name,
                )
            self._end(pause)

    def _passes(self) -> float | None:
        """Delete until nothing is left; return the pause before the next run; None: it is done."""
        with global_lock(self._owner) as self._tenure:
            try:
                for _ in range(_MOST_PASSES):
                    if not self._pass() or self._error:
                        return None
            except _Over:
                return 0.0
            return _PASSES_PAUSE

    def _pass(self) -> bool:
        found = 0
        self._left_some = False
        below = self._walk.below(self._root)
        while left := list(itertools.islice(below, self._plan.batch)):
            while left:
                deleted, left = self._delete(left)
                found += deleted
                self._end_batch()
        return found > 0 or self._left_some

    def _end_batch(self) -> None:
        now = self._plan.clock.now()
        if now - self._reported >= _REPORT_SECONDS:
            self._report()
        if now >= self._ends or self._keeps_too_many:
            raise _Over
        self._yield()

    def _yield(self) -> None:
        self._tenure = self._tenure.yield_to_waiters()
        self._yielded = self._plan.clock.now()

    def _checkpoint(self) -> None:
        """Do between two queries what is due after a batch: many may come before the first one."""
        now = self._plan.clock.now()
        if now - self._yielded >= _CHECKPOINT_SECONDS:
            self._end_batch()

    @property
    def _keeps_too_many(self) -> bool:
        return len(self._kept) >= _MOST_KEPT

    def _delete(self, batch: list[Found]) -> tuple[int, list[Found]]:
        """Delete entities; return how many, and those that are left if assets take long."""
        entities = self._read_all(batch)
        ends = self._plan.clock.now() + _BATCH_SECONDS
        ready: list[Found] = []
        left = self._left(batch, entities)
        assets = self._plan.assets
        for number, each in enumerate(batch):
            if each.key in self._kept or _is_below_one(each, left):
                continue
            entity = entities.get(each.key)
            remove = next((assets[cls] for cls in type(entity).__mro__ if cls in assets), None)
            if remove is not None:
                if number and self._plan.clock.now() >= ends:
                    return self._delete_all(ready), batch[number:]
                if self._tenure.lost or not self._tenure.expires_in:
                    raise errors.LockNotHeld("the lease ended in a deletion", lock_id=self._owner)
                try:
                    call_to_end(remove, entity)
                except Exception as error:
                    self._keep(each, error)
                    continue
            ready.append(each)
        return self._delete_all(ready), []

    def _read_all(self, batch: list[Found]) -> dict[Any, Any]:
        """Return the entities of a batch that have to be read. One that cannot be read stays."""
        kinds = {each._get_kind() for each in self._plan.assets}
        owning = {each.key for each in batch if kind_of(each.key) in kinds}
        if owning:
            self._check_root()  # before something goes that no transaction brings back
        try:
            return _read(_naming(batch) | owning)
        except DATASTORE_ERRORS:
            raise
        except Exception as error:
            if len(batch) > 1:
                alone = (self._read_all([each]) for each in batch)
                return {key: entity for found in alone for key, entity in found.items()}
            self._keep(batch[0], error)
            return {}

    def _delete_all(self, batch: list[Found]) -> int:
        """Delete entities in one transaction; each by itself if that is refused."""
        batch = [each for each in batch if each.key not in self._kept]
        if not batch:
            return 0
        try:
            added = self._with_additions(batch) if self._asks_outside else None
            deleted: int = ndb.transaction(lambda: self._delete_here(batch, added))
        except _RefusedInTransactions:
            self._asks_outside = True
            return self._delete_all(batch)
        except Exception as error:
            many = isinstance(error, InvalidArgument)  # groups of one transaction, in legacy mode
            if not many and isinstance(error, (*DATASTORE_ERRORS, *_LOCK_GONE, _Superseded)):
                raise
            if len(batch) == 1:
                self._keep(batch[0], error)
                return 0
            size = (len(batch) + 1) // 2 if many else 1
            return sum(
                self._delete_all(batch[first : first + size])
                for first in range(0, len(batch), size)
            )
        self._deleted += deleted
        if deleted and not self._fruitful:
            self._fruitful = True
            self._ends = self._plan.clock.now() + RUN_SECONDS
        return deleted

    def _delete_here(self, batch: list[Found], added: set[Any] | None) -> int:
        """Delete entities in the running transaction, which sees where they are now."""
        self._check_root()
        entities = _read(_naming(batch))
        left = self._left(batch, entities)
        # Found a second time, by a property, when it was gone.
        going = [
            each
            for each in batch
            if not _is_below_one(each, left)
            and (each.way[-1].attribute is None or each.key in entities)
        ]
        staying = self._with_additions(going) if added is None else added
        if staying:
            self._left_some = True
        keys = {each.key for each in going} - staying
        ndb.delete_multi([key for key in keys if names_lock(key)])
        for key in keys:
            if not names_lock(key):
                delete(key, unguarded="its tree goes, in a transaction that has looked at it")
        return len(keys)

    def _left(self, batch: list[Found], entities: Mapping[Any, Any]) -> set[Any]:
        """Return the keys of entities on the ways of a batch that are not below the root any more,
        or another owner's.
        """
        steps = {step.key: step for each in batch for step in each.way}
        return {
            key
            for key, step in steps.items()
            if step.is_left(entities.get(key)) or self._is_foreign(step, entities.get(key))
        }

    def _is_foreign(self, step: Any, entity: Any) -> bool:
        """Return whether an entity that names one of the tree is under another owner's lock."""
        if step.attribute is None or getattr(entity, "_userlock_rule", None) is None:
            return False
        if lock_id_of(entity) == self._owner:
            self._foreign.discard(entity.key)
            return False
        if entity.key not in self._foreign:
            self._foreign.add(entity.key)
            log.warning("a deletion leaves %s, which is another owner's", show_key(entity.key))
        return True

    def _with_additions(self, going: list[Found]) -> set[Any]:
        """Return the keys of entities below which something was added, and those on their ways.

        Once such an entity is gone, no pass finds what it led to:

            this run                        another request
            reads what names S: V1
                                            puts V2, which names S
            deletes V1 and S                (V2 would stay for ever)
        """
        keys = {each.key for each in going}
        asked = []
        for each in going:
            for query in self._walk.queries_below(each):
                known = len(keys) + len(each.way) + len(self._foreign)
                found = query.fetch_async(known + 1, keys_only=True)
                if self._asks_outside is None and query.ancestor is None:
                    found.wait()
                    error = found.exception()
                    if error is not None and isinstance(undisguised(error), InvalidArgument):
                        raise _RefusedInTransactions
                    self._asks_outside = False
                asked.append((each, found))
        staying: set[Any] = set()
        for each, found in asked:
            way = {step.key for step in each.way}  # those in a ring name one that they lead to
            if not keys | way | self._foreign >= set(found.get_result()):
                staying |= way
        return staying

    def _check_root(self) -> Any:
        root = self._root.get()
        if root is not None and version_of(root) > self._root_version:
            raise _Superseded
        return root

    def _keep(self, found: Found, error: Exception) -> None:
        if not self._error:
            text = f"{show_key(found.key)}: {type(error).__name__}: {error}"
            self._error = legible(text, _MOST_ERROR)
            log.warning("a deletion leaves %s", self._error, exc_info=error)
        self._kept.update(step.key for step in found.way)

    def _row(self) -> Any:
        return self._key.get(use_cache=False, use_global_cache=False)

    def _report(self) -> None:
        def note() -> None:
            row = self._row()
            if row is not None:
                row.deleted += self._deleted
                row.error = self._error
                row.put()

        ndb.transaction(note)
        self._deleted = 0
        self._reported = self._plan.clock.now()

    def _end(self, pause: float | None, *, superseded: bool = False) -> None:
        def end() -> None:
            row = self._row()
            if row is None or row.ended_at:
                return
            row.deleted += self._deleted
            row.error = self._error
            row.superseded = superseded
            if pause is None:
                if not superseded and self._check_root() is not None:
                    self._root.delete()
                row.ended_at = now = micros_now(self._plan.clock)
                if self._plan.keep_days is not None:
                    row.expire_at = moment_of(now + round(self._plan.keep_days * 86_400e6))
            else:
                id_ = self._key.id()
                self._job.stage(self._owner, id_, delay=pause, dedupe=id_)
            row.put()

        try:
            ndb.transaction(end)
        except _Superseded:
            self._end(None, superseded=True)


def _naming(batch: list[Found]) -> set[Any]:
    """Return the keys of entities that name a parent, on the ways of a batch."""
    return {step.key for each in batch for step in each.way if step.attribute is not None}


def _read(keys: set[Any]) -> dict[Any, Any]:
    return {key: each for key, each in zip(keys, ndb.get_multi(keys), strict=True) if each}


def _is_below_one(found: Found, keys: set[Any]) -> bool:
    return bool(keys) and any(step.key in keys for step in found.way)
