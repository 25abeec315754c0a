"""`Tree` and `delete_tree`: a root and all that is below it, deleted for certain.

    UserLockOwner ann                     no entity of its own: the root of the group
      UserLockDeletion 0006441f…          one deletion: what, since when, how far; stays, as a log

    handler                      Datastore                       job, under the owner's lock
    delete_tree ───────────────▶ log, job, root gone: all or none
                                 batch by batch, bottom-up ◀──── walks; lets waiters pass
                                                                 dies: the next run starts again
                                 the root once more, the end ◀── a pass has found nothing

Each batch is one transaction, so that a parent never goes without its children.
"""

from __future__ import annotations

import datetime
import functools
import secrets
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.arguments import check_count, check_number
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.deletion.run import Plan, Run
from userlock.errors import ConfigurationError
from userlock.ids import quoted, show_key
from userlock.lock.lease import check_lock_id
from userlock.ndb import owners
from userlock.ndb.lock_ids import lock_id_of, lock_id_of_key
from userlock.ndb.model import Model, WriteIdProperty
from userlock.ndb.patches import kind_of
from userlock.ndb.policies import WritePolicy
from userlock.ndb.provenance import version_of
from userlock.ndb.transactions import call_to_end, is_plain
from userlock.outbox.job import Retry
from userlock.outbox.outbox import Outbox

#: The longest note, in characters.
_MOST_NOTE = 1000
#: Longer than any id.
_MOST_ID = 100
_CHILDREN = "{Parent: {Child: 'property'}}"
#: Four days of failures, or a hundred processes that end: each run goes on with the rest.
_RETRY = Retry(attempts=100)
#: The trees of each kind of root. The latest one that its outbox still keeps counts.
_trees: dict[str, list[weakref.ref[Tree]]] = {}


class DeletionRow(Model):
    """A deletion: see `Deletion`. Times are in microseconds since 1970."""

    _write_policy = WritePolicy.IN_TRANSACTION
    write_id = WriteIdProperty()

    owner = ndb.JsonProperty(indexed=False)
    tree = ndb.TextProperty()
    root = ndb.KeyProperty(indexed=False)
    root_version = ndb.IntegerProperty(indexed=False, default=0)  # 0: it was gone already
    superseded = ndb.BooleanProperty(indexed=False, default=False)
    asked_at = ndb.IntegerProperty(indexed=False)
    note = ndb.TextProperty(default="")
    deleted = ndb.IntegerProperty(indexed=False, default=0)
    error = ndb.TextProperty(default="")
    ended_at = ndb.IntegerProperty(indexed=False, default=0)  # 0 while it is not finished
    #: When a TTL policy of Datastore may remove it. Only of a finished one.
    expire_at = ndb.DateTimeProperty(indexed=False)
    unfinished = ndb.ComputedProperty(
        lambda row: None if row.ended_at else owners.shard_index("", row.key, row.asked_at)
    )

    @classmethod
    def _get_kind(cls) -> str:
        return "UserLockDeletion"

    @property
    def has_expired(self) -> bool:
        """Return whether a TTL policy may have removed the row: it counts as removed."""
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)  # as in Datastore
        return self.expire_at is not None and bool(self.expire_at <= now)


class Deletion(NamedTuple):
    """A deletion as it stands.

    Attributes:
        id: names it, with its owner.
        owner: the lock id.
        tree: the name of the tree.
        root: the key of the root.
        asked_at: when it was asked for, in seconds since 1970.
        note: as `delete_tree` was given it.
        deleted: the entities below the root that were deleted so far, at least.
        error: of the last run, if that has failed; empty otherwise.
        ended_at: when all was deleted, in seconds since 1970; None while it goes on.
        superseded: whether it ended before, as there is a new root under the same key.
    """

    id: str
    owner: str
    tree: str
    root: Any
    asked_at: float
    note: str
    deleted: int
    error: str
    ended_at: float | None
    superseded: bool


def _deletion_in(row: Any) -> Deletion:
    same = ("owner", "tree", "root", "note", "deleted", "error")
    return Deletion(
        id=row.key.id(),
        asked_at=row.asked_at / 1e6,
        ended_at=row.ended_at / 1e6 if row.ended_at else None,
        superseded=bool(row.superseded),
        **{name: getattr(row, name) for name in same},
    )


def _row_key(owner: str, id_: str) -> Any:
    return ndb.Key(DeletionRow, id_, parent=owners.owner_key(owner))


def _tree_of(kind: str) -> Tree | None:
    found = (each() for each in reversed(_trees.get(kind, [])))
    return next((tree for tree in found if tree is not None), None)


class Tree:
    """A kind of root, and what is below it.

        project_tree = Tree(
            Project, outbox,
            children={Project: {Screen: "project"}, Screen: {Version: "screen"}},
            assets={Version: lambda version: storage.delete(version.file)},
            on_delete=projects_quota.stamp,
        )

    What is under the root's key path needs no declaration. `delete_tree` deletes the root at once,
    and lets a job delete the rest, with the owner's lock and as the write policies say. Entities
    that cannot be deleted stay, with those through which they are found; the others go, the job
    fails, is tried again by the outbox, and shows the first error. They hold nobody up.

    A new root under the key of a deleted one stays, with all that is below it: the deletion ends
    then, as `superseded`. An entity that was moved away stays, too.

    Args:
        model: the model of the root.
        outbox: runs the job `userlock.deletion:NAME`.
        children: for each model, the models whose entities name it in a `KeyProperty`, and that
            property's name.
        assets: functions that remove what belongs to an entity elsewhere, such as a file, before
            the entity goes. Called with the entity, at least once; not with the root.
        on_delete: called with the owner in the transaction that deletes the root, such as
            `quota.stamp`.
        name: part of stored data; by default the root's kind.
        batch: the entities that are deleted in one transaction, while others wait for the lock.
        keep_days: when Datastore's TTL policy on `UserLockDeletion.expire_at` may remove the row
            of a finished deletion, which counts as removed from then on; None: never.
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
        if not isinstance(outbox, Outbox):
            raise ConfigurationError(f"outbox is a userlock.outbox.Outbox, not {outbox!r:.80}")
        check_count("batch", batch, least=1, most=500)
        if keep_days is not None:
            check_number("keep_days", keep_days, least=0, most=366_000)
        if on_delete is not None and not is_plain(on_delete):
            raise ConfigurationError(f"on_delete is a plain function, not {on_delete!r:.80}")
        if name is not None and (not isinstance(name, str) or not name):
            raise ConfigurationError(f"a tree's name is a text, not {name!r:.80}")
        kind = model._get_kind()
        other = _tree_of(kind)  # `delete_tree` knows the tree by the kind of a key
        self._of = model.__module__, model.__qualname__
        if other is not None and other._of != self._of:
            raise ConfigurationError(
                f"the kind {kind} has a tree of another model already. To fix it: make one Tree, "
                f"of the root of the PolyModel hierarchy"
            )
        assets = {} if assets is None else assets
        if not isinstance(assets, Mapping) or not all(
            _is_model(each) and is_plain(remove) for each, remove in assets.items()
        ):
            raise ConfigurationError(f"assets is {{Model: plain function}}, not {assets!r:.200}")
        declared = _declared(children or {})
        named = {child for of in declared.values() for child, _ in of}
        if model in assets and model not in named:
            raise ConfigurationError(
                f"assets names the root, {kind}, which goes before the job. To fix it: stage a job "
                f"for what belongs to it, in the transaction that calls delete_tree"
            )
        self._plan = Plan(declared, dict(assets), batch, keep_days, clock)
        self.name = name or kind
        self._model = model
        self._on_delete = on_delete

        def delete(owner: str, deletion: str) -> None:
            Run(self._plan, self._job, owner, _row_key(owner, deletion)).run()

        job = outbox.job(name=f"userlock.deletion:{self.name}", ordered=False, retry=_RETRY)
        self._job = job(delete)
        _trees.setdefault(kind, []).append(weakref.ref(self))

    def delete(self, root: Any, owner: str | None = None, note: str = "") -> Deletion:
        """Delete a root and all that is below it: see `delete_tree`."""
        key = root if isinstance(root, ndb.Key) else root.key
        if key is None or kind_of(key) != self._model._get_kind() or key.id() is None:
            raise ValueError(f"{root!r:.200} is no stored {self._model._get_kind()}, nor its key")
        if owner is None:
            owner = self._owner_of(key) if root is key else self._owner_of(key, root)
        else:
            owner = check_lock_id(owner)
        if owner is None:
            raise ConfigurationError(
                f"{show_key(key)} does not say which owner's lock the deletion runs under. To fix "
                f"it: give owner=, or the entity instead of its key"
            )
        if not isinstance(note, str) or len(note) > _MOST_NOTE:
            raise ValueError(f"note is a text of up to {_MOST_NOTE} characters, not {note!r:.80}")
        begin = functools.partial(self._begin, key, owner, note)
        with owners.in_namespace_of(key):
            deletion: Deletion = ndb.transaction(begin, join=True)
            return deletion

    def _owner_of(self, key: Any, root: Any = None) -> str | None:
        """Return the owner that a root, or its key, names; None if they name none."""
        if self._model._write_policy is not WritePolicy.USER_LOCK:
            return None
        return lock_id_of_key(self._model, key) if root is None else lock_id_of(root)

    def _begin(self, key: Any, owner: str, note: str) -> Deletion:
        root = key.get(use_cache=False, use_global_cache=False)
        if self._owner_of(key, root) not in (None, owner):
            raise ValueError(
                f"{show_key(key)} is under the lock of another owner than {quoted(owner)}, so the "
                f"job could not delete what is below it. To fix it: leave owner= out"
            )
        now = owners.micros_now(self._plan.clock)
        row = DeletionRow(
            key=_row_key(owner, f"{now:016x}{secrets.token_hex(6)}"),
            owner=owner,
            tree=self.name,
            root=key,
            root_version=0 if root is None else version_of(root),
            asked_at=now,
            note=note,
        )
        row.put()
        self._job.stage(owner, row.key.id())
        key.delete()
        if self._on_delete is not None:
            call_to_end(self._on_delete, owner)
        return _deletion_in(row)


def _declared(children: Any) -> dict[str, list[tuple[Any, str]]]:
    declared: dict[str, list[tuple[Any, str]]] = {}
    if not isinstance(children, Mapping):
        raise ConfigurationError(f"children is {_CHILDREN}, not {children!r:.80}")
    for parent, of in children.items():
        if not _is_model(parent) or not isinstance(of, Mapping) or not all(map(_is_model, of)):
            raise ConfigurationError(f"children is {_CHILDREN}, not {children!r:.200}")
        declared.setdefault(parent._get_kind(), []).extend(
            (child, _checked(child, each)) for child, each in of.items()
        )
    return declared


def _is_model(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, ndb.Model)


def _checked(child: Any, name: str) -> str:
    if isinstance(name, ndb.Property):
        raise ConfigurationError(f"{child.__name__}: give the name of {name!r}, as a text")
    found = getattr(child, name, None) if isinstance(name, str) else None
    if not isinstance(found, ndb.KeyProperty):
        raise ConfigurationError(
            f"{child.__name__}.{name!s:.80} is no KeyProperty, which a child needs"
        )
    if found._repeated or not found._indexed:
        raise ConfigurationError(
            f"{child.__name__}.{name} is repeated or not indexed: a child names one parent, and "
            f"has to be found by that"
        )
    return name


def delete_tree(root: Any, *, owner: str | None = None, note: str = "") -> Deletion:
    """Delete a root now, and let a job delete all that is below it. For a model with a `Tree`.

    One transaction, the running one if there is one, logs the deletion, stages the job, deletes the
    root, and calls the tree's `on_delete`: all or none. A root that is gone already is no error:
    what is left below it goes.

    Args:
        root: the entity, or its key. Under its lock, as for any delete.
        owner: the lock id under which the job runs, if the root does not name it.
        note: for readers of the log, such as the root's title and the user who deleted it. At
            most 1000 characters.

    Returns:
        The deletion; `find_deletion` tells later how far it is.

    Raises:
        ConfigurationError: its model has no tree, or the owner is not known.
        ValueError: the root names another owner than `owner`, or is not stored; or the note is too
            long.
        TypeError: `root` is neither an entity nor a key.
        WriteViolation: the root must not be deleted here and now.
        GoogleAPIError: the commit has failed. Nothing is deleted then.
    """
    if not isinstance(root, ndb.Key | ndb.Model):
        raise TypeError(f"delete_tree takes an entity or its key, not {root!r:.80}")
    kind = kind_of(root) if isinstance(root, ndb.Key) else type(root)._get_kind()
    tree = _tree_of(kind)
    if tree is None:
        raise ConfigurationError(
            f"{kind} has no tree. To fix it: make a userlock.deletion.Tree of its model when the "
            f"app is set up"
        )
    return tree.delete(root, owner, note)


def find_deletion(owner: str, id_: str) -> Deletion | None:
    """Return a deletion by its owner and id; None if there is none.

    In an ndb context, whose namespace is the root's.
    """
    if not isinstance(id_, str) or not id_:
        raise TypeError(f"a deletion's id is a text, not {id_!r:.80}")
    key = _row_key(check_lock_id(owner), id_[:_MOST_ID])
    row = key.get(use_cache=False, use_global_cache=False)
    return None if row is None or row.has_expired else _deletion_in(row)


def deletions_of(owner: str, most: int = 100) -> list[Deletion]:
    """Return an owner's deletions, the latest first. In an ndb context; those of its namespace."""
    check_count("most", most, least=0)
    query = DeletionRow.query(ancestor=owners.owner_key(check_lock_id(owner)))
    rows = query.fetch(use_cache=False, use_global_cache=False)
    kept = [_deletion_in(row) for row in rows if not row.has_expired]
    return sorted(kept, key=lambda each: each.id, reverse=True)[:most]


def unfinished() -> Iterator[Deletion]:
    """Give the deletions of all owners and namespaces that are not finished. In an ndb context."""
    index = DeletionRow.unfinished
    for namespace in owners.namespaces():
        for shard in range(owners.SHARDS):
            rows = owners.shard_query(index, DeletionRow, "", shard, namespace=namespace)
            yield from map(_deletion_in, rows)
