"""The write policy of entities that are read and written in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.ndb.actions import arranged, check_policy_message

pytestmark = [pytest.mark.usefixtures("context"), EACH_MODE]


class Course(userlock.Model):
    _write_policy = userlock.WritePolicy.IN_TRANSACTION
    seats = ndb.IntegerProperty(default=0)


@pytest.fixture
def course(context: Any) -> Course:
    course: Course = arranged(Course(id="physics"))
    return course


def test_read_and_put_in_one_transaction(course: Course) -> None:
    def enrol() -> None:
        found = course.key.get()
        found.seats += 1
        found.put()
        found.put()

    ndb.transaction(enrol)
    assert course.key.get(use_cache=False).seats == 1


def test_read_twice_in_one_it_is_the_same_object(course: Course) -> None:
    assert ndb.transaction(lambda: course.key.get() is course.key.get())


def test_no_transaction_at_all(course: Course) -> None:
    with pytest.raises(userlock.NotInTransaction) as caught:
        course.put()
    check_policy_message(caught.value, course)
    assert "actions.py" in str(caught.value.read_at)


def independently(work: Callable[[], Any]) -> Any:
    return ndb.non_transactional()(ndb.transaction)(work)


def put_and_return(course: Course) -> Any:
    read = course.key.get()
    read.put()
    return read


@pytest.mark.parametrize(
    "put",
    [
        pytest.param(lambda course: ndb.transaction(course.put), id="read outside"),
        pytest.param(
            lambda course: ndb.transaction(ndb.transaction(course.key.get).put),
            id="read in another",
        ),
        pytest.param(
            lambda course: ndb.transaction(lambda: independently(course.key.get().put)),
            id="read in the outer one",
        ),
        pytest.param(
            lambda course: ndb.transaction(ndb.transaction(lambda: put_and_return(course)).put),
            id="put in another",
        ),
    ],
)
def test_put_in_another_one_than_it_was_read_in(
    course: Course, put: Callable[[Course], Any]
) -> None:
    with pytest.raises(userlock.WrongTransaction, match="last put, outside of it") as caught:
        put(course)
    check_policy_message(caught.value, course)


def test_an_entity_read_in_an_independent_one_is_read_again(course: Course) -> None:
    """It leaves the entity in the context cache of the transaction around it."""
    independent = ndb.TransactionOptions.INDEPENDENT

    def outer() -> None:
        read = ndb.transaction(course.key.get, propagation=independent)
        with pytest.raises(userlock.WrongTransaction, match="last put, outside of it"):
            read.put()
        again = course.key.get()
        again.seats += 1
        again.put()
        assert course.key.get() is again

    ndb.transaction(outer)
    assert course.key.get(use_cache=False).seats == 1


def test_an_object_of_a_failed_attempt_put_in_the_next(course: Course) -> None:
    kept: list[Any] = []

    @ndb.transactional(retries=1)
    def enrol() -> None:
        kept.append(course.key.get())
        kept[0].put()
        if len(kept) == 1:
            raise google_errors.Aborted("contention")

    with pytest.raises(userlock.WrongTransaction, match="last put, outside of it"):
        enrol()
    assert len(kept) == 2


def test_new_entities() -> None:
    Course().put()
    with pytest.raises(userlock.NotInTransaction):
        Course(id="maths").put()
    ndb.transaction(Course(id="maths").put)


def test_get_or_insert() -> None:
    assert Course.get_or_insert("maths", seats=3).seats == 3
    assert Course.get_or_insert("maths", seats=4).seats == 3


def test_deletes(course: Course) -> None:
    with pytest.raises(userlock.NotInTransaction) as caught:
        course.key.delete()
    check_policy_message(caught.value, course)
    assert "deleted at" in str(caught.value)
    ndb.transaction(course.key.delete)
    assert course.key.get(use_cache=False) is None
