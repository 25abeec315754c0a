"""A write that nobody awaits: its error is raised where its lock or its context is left."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.ndb import exceptions

import userlock
from tests.contract.ndb.actions import Elsewhere, Overtake, change, stored_points
from tests.contract.ndb.models import Learner
from userlock.contrib.request_scope import finish_writes
from userlock.ndb import pending
from userlock.ndb.writes import Delete


@pytest.fixture
def _ann(ndb_client: ndb.Client, service: userlock.LockService) -> None:
    with ndb_client.context(), userlock.global_lock("ann"):
        Learner(id="ann").put()
    userlock.configure(enforcement="off")


def begin_stale_put(elsewhere: Elsewhere) -> Any:
    learner = Learner.get_by_id("ann")
    elsewhere(lambda: change(learner.key, 5))
    learner.points += 100
    return learner.put_async()


class Named(userlock.UserModel):
    _lock_id_from_key = userlock.key_id

    name = ndb.StringProperty(required=True)


@ndb.transactional()
def put_in_a_transaction(entity: Any) -> None:
    entity.put_async()


@pytest.mark.parametrize("begin", [lambda entity: entity.put_async(), put_in_a_transaction])
@pytest.mark.parametrize(
    ("fencing", "raised"),
    [(False, contextlib.nullcontext()), (True, pytest.raises(exceptions.Error))],
    ids=["as in ndb", "fenced"],
)
def test_in_a_roll_out_nobody_learns_of_it(
    ndb_client: ndb.Client,
    service: userlock.LockService,
    begin: Callable[[Any], object],
    fencing: bool,
    raised: Any,
) -> None:
    """The first step of docs/adoption.md: nothing changes."""
    userlock.configure(enforcement="log", fencing=fencing)
    with raised, ndb_client.context():
        begin(Named(id="bob"))
        begin(Named(id="ann", name="Ann"))
    with ndb_client.context():
        assert fencing or Named.get_by_id("ann") is not None


@pytest.mark.usefixtures("_ann")
class TestOutsideOfLocksAndTransactions:
    def test_it_is_raised_when_the_context_is_left(
        self, ndb_client: ndb.Client, elsewhere: Elsewhere
    ) -> None:
        with pytest.raises(userlock.StaleWriteError), ndb_client.context():
            begin_stale_put(elsewhere)
        with ndb_client.context():
            assert stored_points() == 5

    def test_it_does_not_hide_the_error_of_the_context(
        self, ndb_client: ndb.Client, elsewhere: Elsewhere
    ) -> None:
        def handler() -> None:
            with ndb_client.context():
                begin_stale_put(elsewhere)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            handler()

    def test_a_web_request_gets_it_before_its_answer(
        self, ndb_client: ndb.Client, elsewhere: Elsewhere
    ) -> None:
        with ndb_client.context():
            begin_stale_put(elsewhere)
            assert isinstance(finish_writes(), userlock.StaleWriteError)
            assert finish_writes() is None


# --- each way to drop a future --------------------------------------------------------------


@ndb.tasklet
def save(learner: Any) -> Any:
    yield learner.put_async()


@ndb.tasklet
def save_by_another(learner: Any) -> Any:
    yield save(learner)


@ndb.tasklet
def save_all(learners: list[Any]) -> Any:
    yield ndb.put_multi_async(learners)


@ndb.tasklet
def save_at_once(learner: Any) -> Any:
    yield ndb.sleep(0)
    learner.put()


@ndb.tasklet
def remove(learner: Any) -> Any:
    yield learner.key.delete_async()


def map_all(learner: Any) -> None:
    Learner.query(ancestor=learner.key).map_async(lambda _: learner.put_async())


def in_a_transaction(learner: Any) -> None:
    ndb.transaction_async(lambda: learner.put_async())


DROPPED: dict[str, Callable[[Any], object]] = {
    "put_async": lambda learner: learner.put_async(),
    "put_multi_async": lambda learner: ndb.put_multi_async([learner]),
    "delete_async": lambda learner: learner.key.delete_async(),
    "a tasklet": save,
    "a tasklet of a tasklet": save_by_another,
    "put_multi_async in a tasklet": lambda learner: save_all([learner]),
    "delete_async in a tasklet": remove,
    "toplevel": lambda learner: ndb.toplevel(lambda: save(learner) and None)(),
}
#: They begin their write on a later turn of the event loop.
DROPPED_BEFORE_THE_WRITE: dict[str, Callable[[Any], object]] = {
    "a tasklet that puts at once": save_at_once,
    "map_async": map_all,
    "transaction_async": in_a_transaction,
}
EACH_DROPPED = pytest.mark.parametrize(
    ("drop", "error"),
    [pytest.param(drop, userlock.StaleWriteError, id=name) for name, drop in DROPPED.items()]
    + [
        pytest.param(drop, userlock.PutAfterRelease, id=name)
        for name, drop in DROPPED_BEFORE_THE_WRITE.items()
    ],
)


@EACH_DROPPED
@pytest.mark.usefixtures("_ann")
def test_a_stale_write_reaches_the_application(
    ndb_client: ndb.Client,
    overtake: Overtake,
    drop: Callable[[Any], object],
    error: type[Exception],
) -> None:
    userlock.configure(enforcement="raise")

    def request() -> None:
        with ndb_client.context(), userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            overtake(lambda: change(learner.key, 5))
            learner.points += 100
            drop(learner)

    with pytest.raises(error):
        request()
    with ndb_client.context():
        assert stored_points() == 5


@pytest.mark.parametrize("drop", DROPPED.values(), ids=list(DROPPED))
@pytest.mark.parametrize("error", [ZeroDivisionError, GeneratorExit])
@pytest.mark.usefixtures("_ann")
def test_a_stale_write_outlives_an_exception_that_is_caught(
    ndb_client: ndb.Client,
    overtake: Overtake,
    drop: Callable[[Any], object],
    error: type[BaseException],
) -> None:
    """Its lock is left by that exception, and the request goes on."""

    def request() -> None:
        with contextlib.suppress(error), userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            overtake(lambda: change(learner.key, 5))
            learner.points += 100
            drop(learner)
            raise error

    userlock.configure(enforcement="raise")
    with pytest.raises(userlock.StaleWriteError), ndb_client.context():
        request()
    with ndb_client.context():
        request()
        assert isinstance(finish_writes(), userlock.StaleWriteError)
        assert stored_points() == 10


@EACH_DROPPED
@pytest.mark.usefixtures("_ann")
def test_a_violation_reaches_the_application(
    ndb_client: ndb.Client, drop: Callable[[Any], object], error: type[Exception]
) -> None:
    userlock.configure(enforcement="raise")

    def request() -> None:
        with ndb_client.context():
            drop(Learner.get_by_id("ann"))

    with pytest.raises(userlock.WriteViolation):
        request()


@pytest.mark.usefixtures("_ann")
def test_the_control_loses_it(ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: errors are not followed from one future to the next."""
    userlock.configure(enforcement="raise")
    monkeypatch.setattr(pending, "failure_of", lambda error: None)
    with ndb_client.context():
        save(Learner.get_by_id("ann"))


# --- no error twice -------------------------------------------------------------------------


def caught_in_the_tasklet(put: Callable[[], Any]) -> None:
    @ndb.tasklet
    def save() -> Any:
        with contextlib.suppress(userlock.UserLockError):
            yield put()

    save()


def caught_from_the_tasklet(put: Callable[[], Any]) -> None:
    @ndb.tasklet
    def save() -> Any:
        yield put()

    with pytest.raises(userlock.StaleWriteError):
        save().result()


def asked_for(put: Callable[[], Any]) -> None:
    @ndb.tasklet
    def save() -> Any:
        yield put()

    future = save()
    future.wait()
    assert isinstance(future.exception(), userlock.StaleWriteError)


def caught_as_one_of_two(put: Callable[[], Any]) -> None:
    @ndb.tasklet
    def save() -> Any:
        yield ndb.sleep(0), put()

    with pytest.raises(userlock.StaleWriteError):
        save().result()


SEEN = [caught_in_the_tasklet, caught_from_the_tasklet, asked_for, caught_as_one_of_two]


@pytest.mark.parametrize("see", SEEN, ids=lambda each: each.__name__)
@pytest.mark.usefixtures("_ann")
def test_an_error_that_was_seen_is_not_raised_again(
    ndb_client: ndb.Client, elsewhere: Elsewhere, see: Callable[[Callable[[], Any]], None]
) -> None:
    with ndb_client.context(), userlock.global_lock("bob"):
        see(lambda: begin_stale_put(elsewhere))


@pytest.mark.usefixtures("_ann")
def test_a_put_multi_reports_all_its_errors_at_once(
    ndb_client: ndb.Client, elsewhere: Elsewhere
) -> None:
    with ndb_client.context():
        ann, bob = Learner.get_by_id("ann"), Learner(id="bob")
        bob.put()
        for each in (ann, bob):
            elsewhere(functools.partial(change, each.key, 5))
        ann.points, bob.points = 100, 100
        with pytest.raises(userlock.StaleWriteError, match="'ann'") as caught:
            ndb.put_multi([ann, bob])
        (note,) = caught.value.__notes__
        assert "'bob'" in note


@pytest.mark.usefixtures("_ann")
def test_a_later_put_that_lands_settles_it(ndb_client: ndb.Client, elsewhere: Elsewhere) -> None:
    with ndb_client.context() as context:
        begin_stale_put(elsewhere)
        context.flush()
        Learner.get_by_id("ann", use_cache=False).put()


@pytest.mark.usefixtures("_ann")
def test_a_delete_that_does_not_begin(
    ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a transaction ndb drops its future: an error of a signal, say, lies in that alone."""

    def interrupt(*_: object) -> None:
        raise ZeroDivisionError

    def work() -> None:
        change(ndb.Key(Learner, "ann"), 5)
        ndb.Key(Learner, "bob").delete()

    monkeypatch.setattr(Delete, "ticketed", interrupt)
    with ndb_client.context():
        with pytest.raises(ZeroDivisionError):
            ndb.transaction(work)
        assert stored_points() == 0
