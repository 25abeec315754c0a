"""The entities of a run: counters that record their last write, and single entries."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from google.cloud import ndb

import userlock
from tests.chaos.programs import NAMESPACES, in_name, namespace_of
from tests.chaos.record import Stored, StoredJobs, StoredTrees
from userlock.constraints import Unique
from userlock.constraints.audit import Audit
from userlock.deletion import unfinished
from userlock.idempotency.rows import RequestRow
from userlock.ids import show_key
from userlock.ndb.owners import in_namespace
from userlock.outbox.rows import JobRow, NameRow, decoded

#: The begin of the names of a run's jobs.
JOBS = "trial."
#: Of titled counters: fewer than a user may have of these.
TITLES = ("Breathing", "Counting", "Falling", "Memory", "Reading", "Writing")


class Counter(userlock.UserModel):
    """A counter below its user. Each write stores its id."""

    _lock_id_from_key = userlock.root_id
    _before_put: Callable[[], None] | None = None

    count = ndb.IntegerProperty(default=0)
    last = ndb.StringProperty()

    def mark(self, write: str) -> None:
        """Change it, by the write of that id."""
        self.count += 1
        self.last = write

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


class TitledCounter(Counter):
    """A counter with a title that none of its user's others has. Some writes change it."""

    _unique = (Unique("title"),)
    title = ndb.StringProperty()

    def mark(self, write: str) -> None:
        super().mark(write)
        number = zlib.crc32(write.encode())
        if self.title is None or number % 2:
            self.title = TITLES[number // 2 % len(TITLES)]

    @classmethod
    def _get_kind(cls) -> str:
        return "TrialTitledCounter"


class Entry(userlock.UserModel):
    """An entity with an automatic id that is never changed."""

    _lock_id_from_key = userlock.root_id

    write = ndb.StringProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TrialEntry"


class Root(userlock.UserModel):
    """The root of a tree, with a title that none of its user's other trees has."""

    _lock_id_from_key = userlock.root_id
    _unique = (Unique("title"),)

    title = ndb.StringProperty()
    write = ndb.StringProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TrialRoot"


class Leaf(userlock.UserModel):
    """A part of a tree, below another one by its key path or by `above`."""

    _lock_id_from_key = userlock.root_id

    above = ndb.KeyProperty()
    tree = ndb.StringProperty()
    write = ndb.StringProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TrialLeaf"


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
    return _MODELS[entity.partition("/")[2][0]]


#: By the first letter of a counter's name.
_MODELS = {"c": Counter, "m": MarkedCounter, "t": TitledCounter}


def key_of(entity: str) -> Any:
    """Return the key of "user/counter", or of a child, "user/counter.child".

    In its namespace, which is that of the running code.
    """
    user, _, names = entity.partition("@")[0].partition("/")
    key = user_key(user)
    for name in names.split("."):
        key = ndb.Key(model_of(entity), name, parent=key)
    return key


def name_of(key: Any) -> str:
    """Return the name of this key."""
    return in_name(f"{key.root().id()}/{'.'.join(key.flat()[3::2])}", key.namespace() or "")


def child_of(entity: str) -> str:
    """Return the name of a counter's possible child."""
    return _longer(entity, ".child")


def other_name_of(entity: str) -> str:
    """Return the name that a counter may be renamed to."""
    return _longer(entity, "-other")


def _longer(entity: str, more: str) -> str:
    return in_name(entity.partition("@")[0] + more, namespace_of(entity))


def _all(model: Any) -> list[Any]:
    """Return the entities of a model in all namespaces, as now stored in Datastore."""
    queries = [model.query(namespace=namespace) for namespace in NAMESPACES]
    return [each for query in queries for each in query.fetch(use_cache=False)]


def stored_counters() -> dict[str, Stored]:
    """Return all counters as now stored in Datastore, by name."""
    return {
        name_of(each.key): Stored(last=each.last, count=each.count)
        for each in itertools.chain.from_iterable(map(_all, _MODELS.values()))
    }


def stored_entries() -> list[str]:
    """Return the writes of all entries as now stored in Datastore."""
    return [each.write for each in _all(Entry)]


def stored_jobs() -> StoredJobs:
    """Return the effects of all jobs, and what is left of them."""
    dead = [row for row in _all(JobRow) if row.dead is not None and _is_ours(row)]
    return StoredJobs(
        ledgers={name_of(each.key): each.done for each in _all(Ledger)},
        dead={_staging_of(row): row.attempts for row in dead},
        unfinished=[_staging_of(row) for row in unfinished_jobs() if _is_ours(row)],
        names=[row.key.id() for row in _all(NameRow)],
    )


def stored_trees(files: Path) -> StoredTrees:
    """Return the trees and titles as now stored in Datastore."""
    roots, titled = _all(Root), _all(TitledCounter)
    return StoredTrees(
        roots=frozenset(each.key.id() for each in roots),
        leaves={each.key.id(): each.tree for each in _all(Leaf)},
        files=frozenset(each.name for each in files.iterdir()),
        unfinished=[f"of {show_key(each.root)}, {each.error}" for each in unfinished()],
        titles=[
            (f"{name_of(each.key.root())}, {each.key.kind()}", each.title)
            for each in (*roots, *titled)
        ],
        problems=[
            f"{problem.what} {problem.constraint} {problem.value} of {show_key(problem.key)}"
            for problem in _problems()
        ],
    )


def _problems() -> Iterator[Any]:
    """Yield the entities and claims that disagree."""
    for namespace in NAMESPACES:
        with in_namespace(namespace):
            for model in (Root, TitledCounter):
                yield from list(Audit().run(model))


def stored_strays() -> list[tuple[str, str]]:
    """Return the writes that are stored in another namespace than their operation's, and where."""
    stored = [
        *((each.write, each.key) for model in (Entry, Root, Leaf) for each in _all(model)),
        *((staging, each.key) for each in _all(Ledger) for staging in each.done),
        *((_staging_of(row), row.key) for row in _all(JobRow) if _is_ours(row)),
    ]
    return [
        (write, show_key(key))
        for write, key in stored
        if (key.namespace() or "") != namespace_of(write)
    ]


def unfinished_jobs() -> list[Any]:
    """Return the rows of jobs that are neither done nor dead."""
    return [row for row in _all(JobRow) if row.dead is None]


def unfinished_requests() -> list[str]:
    """Return the requests that are not finished, although the server can complete them."""
    return [
        in_name(f"{row.user}/{row.idempotency_key}", row.key.namespace() or "")
        for row in _all(RequestRow)
        if not row.is_finished and row.params is not None
    ]


def _is_ours(row: Any) -> bool:
    """Return whether it is no job of the library itself."""
    return bool(row.job.startswith(JOBS))


def _staging_of(row: Any) -> str:
    (_, staging), kwargs = decoded(row.arguments)
    assert kwargs.keys() == {"pause", "failures"}
    return str(staging)
