"""`Tree` and `delete_tree`: a root and all that is below it, deleted for certain.

    handler                      Datastore                       job, under the owner's lock
    delete_tree ───────────────▶ log, job, root gone: all or none
                                 batch by batch, bottom-up ◀──── walks; lets waiters pass
                                                                 dies: the next run starts again
                                 the root once more, the end ◀── a pass has found nothing

Each batch is one transaction, so that a parent never goes without its children.
"""

from __future__ import annotations

import datetime
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from google.api_core.exceptions import InvalidArgument
from google.cloud import ndb

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.deletion.rows import (
    Deletion,
    DeletionRow,
    deletion_in,
    new_key,
    row_key,
    rows_of,
    unfinished_rows,
)
from userlock.deletion.walk import Found, Walk
from userlock.errors import (
    ConfigurationError,
    DeletionIncomplete,
    LockServiceUnavailable,
    LockTimeout,
)
from userlock.ids import show_key
from userlock.lock.api import global_lock
from userlock.lock.held_lock import HeldLock
from userlock.lock.lease import check_lock_id
from userlock.ndb.client import DATASTORE_ERRORS
from userlock.ndb.context import current_context, in_transaction
from userlock.ndb.lock_ids import lock_id_of, lock_id_of_key
from userlock.ndb.model import Model
from userlock.ndb.patches import kind_of
from userlock.ndb.policies import WritePolicy
from userlock.outbox.outbox import Outbox
from userlock.outbox.retry import Retry
from userlock.words import legible

log = logging.getLogger(__name__)

#: A run ends after so long, and stages the next one. In seconds.
RUN_SECONDS = 20.0
#: How often a run stores its progress, in seconds.
_REPORT_SECONDS = 2.0
#: The passes of one run, and the pause before the next run if each has found something.
_MOST_PASSES = 5
_PASSES_PAUSE = 30.0
#: The pause if the lock was not given back in time. In seconds.
_BUSY_PAUSE = 5.0
#: Four days of failures, or a hundred processes that end: each run goes on with the rest.
_RETRY = Retry(attempts=100)
#: So many entities that cannot be deleted end a run.
_MOST_KEPT = 1_000
_MOST_ERROR = 500

#: The latest tree of each kind of root. Its outbox keeps it.
_trees: weakref.WeakValueDictionary[str, Tree] = weakref.WeakValueDictionary()


class Tree:
    """A kind of root, and what is below it.

        project_tree = Tree(
            Project, outbox,
            children={Project: {Screen: "project"}, Screen: {Version: "screen"}},
            assets={Version: lambda version: storage.delete(version.file)},
            on_delete=projects_quota.stamp,
        )

    What is under the root's key path needs no declaration. `delete_tree` deletes
    the root at once, and lets a job delete the rest, with the owner's lock and
    as the write policies say. Entities that cannot be deleted stay, with those
    through which they are found; the others go, the job fails, is tried again
    by the outbox, and shows the first error. They hold nobody up.

    Limit: entities under the key of a deleted root belong to it, until its
    deletion has ended: a new root under the same name would go, too. Roots with
    automatic ids never meet that.

    Args:
        model: the model of the root.
        outbox: runs the job `userlock.deletion:NAME`.
        children: for each model, the models whose entities name it in a `KeyProperty`, and that
            property's name.
        assets: functions that remove what belongs to an entity elsewhere, such as a file, before
            the entity goes. Called with the entity, at least once.
        on_delete: called with the owner in the transaction that deletes the root, such as
            `quota.stamp`.
        name: part of stored data; by default the root's kind.
        batch: the entities that are deleted in one transaction, while others wait for the lock.
        keep_days: when Datastore's TTL policy on `UserLockDeletion.expire_at` may remove the row
            of a finished deletion; None: never.
        clock: for all times.

    Raises:
        ConfigurationError: a property does not fit, or the outbox has a tree of that name.
    """

    def __init__(
        self,
        model: type[Model],
        outbox: Outbox,
        *,
        children: Mapping[Any, Mapping[Any, str]] | None = None,
        assets: Mapping[Any, Callable[[Any], object]] | None = None,
        on_delete: Callable[[str], object] | None = None,
        name: str | None = None,
        batch: int = 100,
        keep_days: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not isinstance(model, type) or not issubclass(model, Model):
            raise ConfigurationError(f"a tree's root is a userlock.Model, not {model!r:.80}")
        if not isinstance(batch, int) or not 1 <= batch <= 500:
            raise ConfigurationError(f"batch is a number from 1 to 500, not {batch!r:.80}")
        declared = {
            parent._get_kind(): [(child, _stored_name(child, each)) for child, each in of.items()]
            for parent, of in (children or {}).items()
        }
        self.name = name or model._get_kind()
        self._model = model
        self._walk = Walk(declared, batch)
        self._assets = {each._get_kind(): remove for each, remove in (assets or {}).items()}
        self._on_delete = on_delete
        self._batch = batch
        self._keep_days = keep_days
        self._clock = clock

        def delete(owner: str, deletion: str) -> None:
            _Run(self, owner, deletion).run()

        job = outbox.job(name=f"userlock.deletion:{self.name}", ordered=False, retry=_RETRY)
        self._job = job(delete)
        _trees[model._get_kind()] = self

    def delete(self, root: Any, owner: str | None = None) -> Deletion:
        """Delete a root and all that is below it: see `delete_tree`."""
        key = root if isinstance(root, ndb.Key) else root.key
        if key is None or kind_of(key) != self._model._get_kind() or key.id() is None:
            raise ValueError(f"{root!r:.200} is no stored {self._model._get_kind()}, nor its key")
        owner = self._owner(root, key) if owner is None else check_lock_id(owner)
        if in_transaction():
            return self._begin(key, owner)
        deletion: Deletion = ndb.transaction(lambda: self._begin(key, owner))
        return deletion

    def _owner(self, root: Any, key: Any) -> str:
        found = None
        if self._model._write_policy is WritePolicy.USER_LOCK:
            found = lock_id_of_key(self._model, key) if root is key else lock_id_of(root)
        if found is None:
            raise ConfigurationError(
                f"{show_key(key)} does not say which owner's lock the deletion runs under. To fix "
                f"it: give owner=, or the entity instead of its key"
            )
        return found

    def _begin(self, key: Any, owner: str) -> Deletion:
        now = self.now()
        row = DeletionRow(
            key=new_key(owner, now), owner=owner, tree=self.name, root=key, asked_at=now
        )
        row.put()
        self._job.stage(owner, row.key.id())
        key.delete()
        if self._on_delete is not None:
            self._on_delete(owner)
        return deletion_in(row)

    # --- for a run --------------------------------------------------------------------------

    def below(self, root: Any) -> Iterator[Found]:
        """Give what is below a root, bottom-up."""
        return self._walk.below(root)

    def remove_assets(self, entity: Any) -> None:
        """Remove what belongs to an entity elsewhere."""
        self._assets[kind_of(entity.key)](entity)

    def has_assets(self, key: Any) -> bool:
        """Return whether something may belong to an entity elsewhere."""
        return kind_of(key) in self._assets

    @property
    def batch(self) -> int:
        return self._batch

    def stage_next(self, owner: str, deletion: str, pause: float) -> None:
        """Stage the next run, in a transaction; once."""
        self._job.stage(owner, deletion, delay=pause, dedupe=deletion)

    def expiry(self) -> datetime.datetime | None:
        """Return when the row of a deletion that ends now may be removed."""
        if self._keep_days is None:
            return None
        at = self._clock.wall() + self._keep_days * 86_400
        return datetime.datetime.fromtimestamp(at, datetime.UTC).replace(tzinfo=None)

    def now(self) -> int:
        """Return the time, in microseconds since 1970."""
        return round(self._clock.wall() * 1e6)

    @property
    def job_name(self) -> str:
        return self._job.name

    @property
    def clock(self) -> Clock:
        return self._clock


def _stored_name(child: Any, name: str) -> str:
    """Return the stored name of a child's property, which names its parent."""
    found = getattr(child, name, None)
    if not isinstance(found, ndb.KeyProperty):
        raise ConfigurationError(f"{child.__name__}.{name} is no KeyProperty, which a child needs")
    if found._repeated or not found._indexed:
        raise ConfigurationError(
            f"{child.__name__}.{name} is repeated or not indexed: a child names one parent, and "
            f"has to be found by that"
        )
    stored: str = found._name
    return stored


class _Run:
    """One run of a deletion's job."""

    def __init__(self, tree: Tree, owner: str, deletion: str) -> None:
        self._tree = tree
        self._owner = owner
        self._id = deletion
        self._deleted = 0
        #: Entities that have to stay: they, or some below them, cannot be deleted.
        self._kept: set[Any] = set()
        self._error = ""
        self._ends = tree.clock.now() + RUN_SECONDS
        self._reported = tree.clock.now()

    def run(self) -> None:
        """Delete what is there, for some seconds.

        Raises:
            DeletionIncomplete: some entities cannot be deleted.
            GoogleAPIError: Datastore does not answer.
        """
        # Entities that are read or deleted must not stay in memory.
        with current_context().new(cache_policy=lambda key: False).use():
            row = self._row()
            if row is None or row.ended_at:
                return
            try:
                pause = self._passes(row.root)
            except (LockTimeout, LockServiceUnavailable):
                pause = _BUSY_PAUSE  # others keep the lock; it is not held here
            if self._error and (pause is None or self._keeps_too_many):
                self._report()
                raise DeletionIncomplete(
                    f"{len(self._kept):,} entities of the deletion of {show_key(row.root)} have to "
                    f"stay: {self._error}",
                    job=self._tree.job_name,
                )
            self._end(pause)

    def _passes(self, root: Any) -> float | None:
        """Delete until nothing is left. Returns the pause before the next run; None: it is done."""
        with global_lock(self._owner) as tenure:
            for _ in range(_MOST_PASSES):
                found = 0
                for batch in self._batches(self._tree.below(root)):
                    found += self._delete(batch)
                    if self._is_over():
                        return 0.0
                    tenure = self._yield(tenure)
                if found == 0 or self._error:
                    return None
            return _PASSES_PAUSE

    def _is_over(self) -> bool:
        if self._keeps_too_many:
            return True
        now = self._tree.clock.now()
        if now - self._reported >= _REPORT_SECONDS:
            self._report()
        return now >= self._ends

    @property
    def _keeps_too_many(self) -> bool:
        return len(self._kept) >= _MOST_KEPT

    @staticmethod
    def _yield(tenure: HeldLock) -> HeldLock:
        """Let interactive requests of the owner pass, between two batches."""
        return tenure.yield_to_waiters()

    def _batches(self, found: Iterable[Found]) -> Iterator[list[Found]]:
        batch: list[Found] = []
        for each in found:
            batch.append(each)
            if len(batch) == self._tree.batch:
                yield batch
                batch = []
        if batch:
            yield batch

    # --- one batch --------------------------------------------------------------------------

    def _delete(self, batch: list[Found]) -> int:
        """Delete entities, those first that come first. Returns how many."""
        gone: list[Found] = []
        owning = [each.key for each in batch if self._tree.has_assets(each.key)]
        entities = dict(zip(owning, ndb.get_multi(owning), strict=True))
        for each in batch:
            if each.key in self._kept:
                continue
            entity = entities.get(each.key)
            try:
                if entity is not None:
                    self._tree.remove_assets(entity)
            except Exception as error:
                self._keep(each, error)
            else:
                gone.append(each)
        return self._delete_all(gone)

    def _delete_all(self, batch: list[Found]) -> int:
        """Delete entities in one transaction; each by itself if that is refused."""
        batch = [each for each in batch if each.key not in self._kept]
        if not batch:
            return 0
        try:
            ndb.transaction(lambda: ndb.delete_multi([each.key for each in batch]))
        except InvalidArgument as error:
            if len(batch) == 1:
                self._keep(batch[0], error)
                return 0
            # Too many groups for one transaction, in the legacy mode.
            middle = len(batch) // 2
            return self._delete_all(batch[:middle]) + self._delete_all(batch[middle:])
        except (*DATASTORE_ERRORS, LockTimeout, LockServiceUnavailable):
            raise
        except Exception as error:
            if len(batch) == 1:
                self._keep(batch[0], error)
                return 0
            return sum(self._delete_all([each]) for each in batch)
        self._deleted += len(batch)
        return len(batch)

    def _keep(self, found: Found, error: Exception) -> None:
        """Note that an entity has to stay, and those through which it is found."""
        if not self._error:
            text = f"{show_key(found.key)}: {type(error).__name__}: {error}"
            self._error = legible(text, _MOST_ERROR)
            log.warning("a deletion leaves %s", text, exc_info=error)
        self._kept.add(found.key)
        self._kept.update(found.through)

    # --- the row ----------------------------------------------------------------------------

    def _row(self) -> Any:
        return row_key(self._owner, self._id).get(use_cache=False, use_global_cache=False)

    def _report(self) -> None:
        """Store the progress."""
        ndb.transaction(self._note)

    def _note(self) -> Any:
        row = self._row()
        if row is not None:
            row.deleted += self._deleted
            row.error = self._error
            row.put()
        self._deleted = 0
        self._reported = self._tree.clock.now()
        return row

    def _end(self, pause: float | None) -> None:
        """End the deletion, or stage the next run."""

        def end() -> None:
            row = self._row()
            if row is None or row.ended_at:
                return
            row.deleted += self._deleted
            row.error = self._error
            if pause is None:
                row.root.delete()
                row.ended_at = self._tree.now()
                row.expire_at = self._tree.expiry()
            else:
                self._tree.stage_next(self._owner, self._id, pause)
            row.put()

        ndb.transaction(end)


def delete_tree(root: Any, *, owner: str | None = None) -> Deletion:
    """Delete a root now, and let a job delete all that is below it. For a model with a `Tree`.

    One transaction logs the deletion, stages the job, deletes the root, and
    calls the tree's `on_delete`: all or none. In a running transaction these
    are part of it. A root that is gone already is no error: what is left below
    it goes.

    Args:
        root: the entity, or its key. Under its lock, as for any delete.
        owner: the lock id under which the job runs, if the root does not tell.

    Returns:
        The deletion; `find_deletion` tells later how far it is.

    Raises:
        ConfigurationError: its model has no tree, or the owner is not known.
        WriteViolation: the root must not be deleted here and now.
        Others, as of a transaction. Nothing is deleted then.
    """
    kind = kind_of(root) if isinstance(root, ndb.Key) else type(root)._get_kind()
    tree = _trees.get(kind)
    if tree is None:
        raise ConfigurationError(
            f"{kind} has no tree. To fix it: make a userlock.deletion.Tree of its model when the "
            f"app is set up"
        )
    return tree.delete(root, owner)


def find_deletion(owner: str, id_: str) -> Deletion | None:
    """Return a deletion by its owner and id; None if there is none. In an ndb context."""
    row = row_key(check_lock_id(owner), id_).get(use_cache=False, use_global_cache=False)
    return None if row is None else deletion_in(row)


def deletions_of(owner: str, most: int = 100) -> list[Deletion]:
    """Return an owner's deletions, the latest first. In an ndb context."""
    return [deletion_in(row) for row in rows_of(check_lock_id(owner), most)]


def unfinished() -> Iterator[Deletion]:
    """Give the deletions of all owners that are not finished. In an ndb context."""
    for row in unfinished_rows():
        yield deletion_in(row)
