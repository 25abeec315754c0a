"""A program behaves with userlock as without: under the lock, and in a roll-out.

Random programs of reads and writes, each run with a model of ours and with a plain one.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import userlock
from tests.contract.ndb.actions import PUTS
from userlock.ndb import checks
from userlock.ndb.context import Attempt

pytestmark = pytest.mark.usefixtures("context", "quick_retries")


class Ours(userlock.UserModel):
    _lock_id_from_key = userlock.root_id

    number = ndb.IntegerProperty(default=0)


class Theirs(ndb.Model):
    number = ndb.IntegerProperty(default=0)


class Overridden:
    """Methods that an application overrides, each of which notes its calls."""

    calls: list[str]

    def put(self, **options: Any) -> Any:
        self.calls.append("put")
        return super().put(**options)  # type: ignore[misc]

    def put_async(self, **options: Any) -> Any:
        self.calls.append("put_async")
        return super().put_async(**options)  # type: ignore[misc]

    @classmethod
    def get_or_insert(cls, *args: Any, **options: Any) -> Any:
        cls.calls.append("get_or_insert")
        return super().get_or_insert(*args, **options)  # type: ignore[misc]

    @classmethod
    def get_or_insert_async(cls, *args: Any, **options: Any) -> Any:
        cls.calls.append("get_or_insert_async")
        return super().get_or_insert_async(*args, **options)  # type: ignore[misc]


class OursOverridden(Overridden, Ours):
    pass


class TheirsOverridden(Overridden, Theirs):
    pass


Around = AbstractContextManager[object]


class RolledBack(Exception):
    """The program rolls its transaction back."""


def queried(key: Any) -> Any:
    entities = ndb.Query(kind=key.kind(), ancestor=key.root()).fetch()
    return next((entity for entity in entities if entity.key == key), None)


GETS: dict[str, Callable[[Any], Any]] = {
    "get": lambda key: key.get(),
    "get_async": lambda key: key.get_async().get_result(),
    "get_multi": lambda key: ndb.get_multi([key])[0],
    "past the cache": lambda key: key.get(use_cache=False),
    "query": queried,
}


@dataclass
class Run:
    """A running program, with one of the models.

    Attributes:
        user: the user whose entities only it reads and writes.
        seen: the results of its reads.
        objects: of each name, the one that is up to date.
        written: in the running transaction, which does not read these back; None outside.
    """

    model: Any
    user: str
    seen: list[int | None] = field(default_factory=list)
    objects: dict[str, Any] = field(default_factory=dict)
    written: set[str] | None = None

    def key(self, name: str | None) -> Any:
        return ndb.Key("User", self.user, self.model, name)

    def get(self, name: str, way: str) -> Any:
        found = GETS["get" if name in (self.written or ()) else way](self.key(name))
        self.seen.append(None if found is None else found.number)
        if found is not None:
            self.objects[name] = found
        return found

    def put(self, entity: Any, way: str) -> None:
        PUTS[way](entity)
        self._note(entity.key.id())

    def _note(self, name: str) -> None:
        if self.written is not None:
            self.written.add(name)

    # --- steps ----------------------------------------------------------------------------------

    def change(self, name: str, get: str, put: str) -> None:
        if (entity := self.get(name, get)) is not None:
            entity.number += 1
            self.put(entity, put)

    def change_again(self, name: str, get: str, put: str) -> None:
        if (entity := self.objects.get(name)) is not None:
            entity.number += 10
            self.put(entity, put)

    def create(self, name: str, get: str, put: str) -> None:
        if self.get(name, get) is None:
            self.objects[name] = self.model(key=self.key(name), number=100)
            self.put(self.objects[name], put)

    def get_or_insert(self, name: str, get: str, put: str) -> None:
        parent = ndb.Key("User", self.user)
        self.objects[name] = self.model.get_or_insert(name, parent=parent, number=200)
        self.seen.append(self.objects[name].number)
        self._note(name)

    def create_some(self, name: str, get: str, put: str) -> None:
        entity = self.model(key=self.key(None), number=300)
        self.put(entity, put)
        entity.number += 1
        self.put(entity, put)
        entity.key = self.key(None)
        self.put(entity, put)

    def delete(self, name: str, get: str, put: str) -> None:
        # ndb's `Key.delete` in a transaction does not wait for the cache to know.
        self.key(name).delete_async().get_result()
        self.objects.pop(name, None)
        self._note(name)

    def copy(self, name: str, get: str, put: str) -> None:
        if name not in (self.written or ()) and (entity := self.get(name, get)) is not None:
            self.objects[name] = copy.deepcopy(entity)
            self.change_again(name, get, put)

    def move(self, name: str, get: str, put: str) -> None:
        to = {"a": "b", "b": "c", "c": "a"}[name]
        entity = self.get(name, get)
        if entity is not None and self.get(to, get) is None:
            entity.key = self.key(to)
            self.put(entity, put)
            self.delete(name, get, put)
            self.objects[to] = entity

    def clear(self, name: str, get: str, put: str) -> None:
        if self.written is None:
            ndb.get_context().clear_cache()


STEPS = (
    *(Run.change, Run.change_again, Run.create, Run.get_or_insert, Run.create_some),
    *(Run.delete, Run.copy, Run.move, Run.clear),
)
Step = Callable[[Run], None]


def plainly(run: Run, steps: list[Step]) -> None:
    run.objects.clear()
    for step in steps:
        step(run)


def in_a_transaction(run: Run, steps: list[Step]) -> None:
    def attempt() -> None:
        run.written = set()
        plainly(run, steps)

    try:
        ndb.transaction(attempt)
    finally:
        run.written = None
        run.objects.clear()


def at_the_second_attempt(run: Run, steps: list[Step]) -> None:
    attempts = itertools.count()

    def fail_once(run: Run) -> None:
        if next(attempts) == 0:
            raise google_errors.Aborted("contention")

    in_a_transaction(run, [*steps, fail_once])


def rolled_back(run: Run, steps: list[Step]) -> None:
    def fail(run: Run) -> None:
        raise RolledBack

    with pytest.raises(RolledBack):
        in_a_transaction(run, [*steps, fail])
    ndb.get_context().clear_cache()  # which ndb alone leaves as if it had landed


# --- and such as break the rules ----------------------------------------------------------------


@dataclass
class CarelessRun(Run):
    """A program that puts outdated objects, and new ones over existing entities."""

    older: list[Any] = field(default_factory=list)

    def get(self, name: str, way: str) -> Any:
        self.older.append(super().get(name, way))
        return self.older[-1]

    def put_an_older_one(self, name: str, get: str, put: str) -> None:
        found = [entity for entity in self.older if entity is not None]
        if found:
            found[len(found) // 2].number += 1000
            self.put(found[len(found) // 2], put)

    def overwrite(self, name: str, get: str, put: str) -> None:
        self.older.append(self.model(key=self.key(name), number=5000))
        self.put(self.older[-1], put)

    def put_a_pickled_one(self, name: str, get: str, put: str) -> None:
        if (entity := self.get(name, get)) is not None:
            entity.number += 3
            self.put(pickle.loads(pickle.dumps(entity)), put)  # noqa: S301 (our own)


CARELESS_STEPS = (
    *STEPS,
    *(CarelessRun.put_an_older_one, CarelessRun.overwrite, CarelessRun.put_a_pickled_one),
)


Block = tuple[Callable[[Run, list[Step]], None], list[Step]]
_users = itertools.count(1)


def step(what: Callable[..., None], name: str, get: str, put: str) -> Step:
    return lambda run: what(run, name, get, put)


def programs(steps: tuple[Callable[..., None], ...]) -> st.SearchStrategy[list[Block]]:
    """Generate random programs of these steps."""
    any_step = st.builds(step, *map(st.sampled_from, (steps, "abc", list(GETS), list(PUTS))))
    block = st.tuples(
        st.sampled_from([plainly, plainly, in_a_transaction, at_the_second_attempt, rolled_back]),
        st.lists(any_step, min_size=1, max_size=6),
    )
    return st.lists(block, min_size=1, max_size=8)


Outcome = tuple[list[int | None], list[tuple[str, int]]]


def outcome(
    kind: type[Run], model: Any, program: list[Block], around: Callable[[str], Around]
) -> Outcome:
    """Return the observations of a program, and the stored state at its end.

    Args:
        kind: the kind of its steps.
        model: the model of its entities.
        program: its steps.
        around: the context manager of each block; called with the user.
    """
    run = kind(model, f"user {next(_users)}")
    for how, what in program:
        with around(run.user):
            how(run, what)
    ndb.get_context().clear_cache()
    stored = ndb.Query(kind=model._get_kind(), ancestor=ndb.Key("User", run.user)).fetch()
    numbers = [
        (each.key.id() if isinstance(each.key.id(), str) else "", each.number) for each in stored
    ]
    return run.seen, sorted(numbers)


# --- with ours and with theirs ------------------------------------------------------------------

a_few = settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def under_the_lock(model: type, program: list[Block]) -> Outcome:
    return outcome(Run, model, program, userlock.global_lock)


def carelessly(model: type, program: list[Block]) -> Outcome:
    return outcome(CarelessRun, model, program, nullcontext)


class TestUnderTheLock:
    @a_few
    @given(program=programs(STEPS))
    def test_nothing_is_refused_and_all_is_the_same(self, program: list[Block]) -> None:
        assert under_the_lock(Ours, program) == under_the_lock(Theirs, program)

    def test_a_difference_would_be_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The negative control: a read of a deleted entity, in the transaction that deletes it."""
        delete_and_look = [step(what, "a", "get", "put") for what in (Run.delete, Run.change)]
        program: list[Block] = [
            (plainly, [step(Run.create, "a", "get", "put")]),
            (in_a_transaction, delete_and_look),
        ]
        assert under_the_lock(Ours, program) == under_the_lock(Theirs, program)
        monkeypatch.setattr(checks, "current_attempt", Attempt)
        assert under_the_lock(Ours, program) != under_the_lock(Theirs, program)


class TestInARollOut:
    """The first step of docs/adoption.md: nothing changes."""

    @a_few
    @given(program=programs(CARELESS_STEPS))
    def test_all_is_the_same(self, program: list[Block]) -> None:
        userlock.configure(enforcement="log", fencing=False)
        assert carelessly(Ours, program) == carelessly(Theirs, program)

    @pytest.mark.parametrize(
        ("refusal", "unlike"),
        [(userlock.CreatedWithoutLock, {}), (userlock.EntityExistsError, {"enforcement": "log"})],
        ids=["enforced", "fenced"],
    )
    def test_with_more_it_would_not_be(
        self, refusal: type[Exception], unlike: dict[str, str]
    ) -> None:
        """The negative control."""
        userlock.configure(**unlike)  # type: ignore[arg-type]
        overwrite = [step(CarelessRun.overwrite, "a", "get", "put")] * 2
        carelessly(Theirs, [(plainly, overwrite)])
        with pytest.raises(refusal):
            carelessly(Ours, [(plainly, overwrite)])

    @pytest.mark.parametrize(
        "call",
        [
            lambda model: model(id="ann").put(),
            lambda model: model(id="ann").put_async().result(),
            lambda model: ndb.put_multi([model(id="ann")]),
            lambda model: model.get_or_insert("ann"),
            lambda model: model.get_or_insert_async("ann").result(),
        ],
        ids=["put", "put_async", "put_multi", "get_or_insert", "get_or_insert_async"],
    )
    def test_overridden_methods_are_called_as_often(self, call: Callable[[Any], object]) -> None:
        userlock.configure(enforcement="log", fencing=False)
        for model in (OursOverridden, TheirsOverridden):
            model.calls = []
            call(model)
        assert OursOverridden.calls == TheirsOverridden.calls != []
