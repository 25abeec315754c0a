"""`enforcement="log"`: each put site is logged once, with both places, and counted."""

from __future__ import annotations

import json
import logging

import pytest

import userlock
from tests.contract.ndb import helper
from tests.contract.ndb.actions import stored_points
from tests.contract.ndb.models import Learner, Note
from userlock.events import LISTENERS, Event, Violation, log_event
from userlock.reports import REPORTS

pytestmark = pytest.mark.usefixtures("context", "_logging")


@pytest.fixture
def _logging(context: object, caplog: pytest.LogCaptureFixture) -> None:
    with userlock.global_lock("ann"):
        Learner(id="ann").put()
    userlock.configure(enforcement="log")
    caplog.set_level(logging.INFO, logger="userlock")


def read_ann() -> Learner:
    learner = Learner.get_by_id("ann", use_cache=False)
    assert learner is not None
    return learner


def add_one(learner: Learner) -> None:
    learner.points += 1
    learner.put()


class TestOnce:
    def test_a_site_is_logged_once_and_every_put_goes_ahead(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(20):
            add_one(read_ann())
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert "PutWithoutLock" in record.getMessage()
        assert "read_ann\n" in record.getMessage()
        assert "in add_one\n" in record.getMessage()
        assert "logged once" in record.getMessage()
        assert stored_points() == 20

    def test_it_is_still_fenced(self) -> None:
        older = read_ann()
        add_one(read_ann())
        with pytest.raises(userlock.StaleWriteError):
            add_one(older)

    def test_other_sites_are_logged_as_well(self, caplog: pytest.LogCaptureFixture) -> None:
        add_one(read_ann())
        read_ann().put()  # another put
        with userlock.global_lock("ann"):
            after = read_ann()
        after.put()  # another mistake
        with userlock.global_lock("ann"):
            note = Note(parent=after.key)
            note.put()
        note.put()  # another kind
        assert len(caplog.records) == 4

    def test_a_raised_violation_is_logged_each_time(self, caplog: pytest.LogCaptureFixture) -> None:
        """The negative control: the mode logs once, not the logger."""
        userlock.configure(enforcement="raise")
        for _ in range(3):
            with pytest.raises(userlock.PutWithoutLock) as caught:
                add_one(read_ann())
            assert caught.value.logged
        assert len(caplog.records) == 3

    def test_one_that_nobody_logs(self) -> None:
        userlock.configure(enforcement="raise")
        LISTENERS.remove(log_event)
        try:
            with pytest.raises(userlock.PutWithoutLock) as caught:
                add_one(read_ann())
        finally:
            LISTENERS.add(log_event)
        assert not caught.value.logged


class TestCounts:
    def test_every_one_is_an_event_that_carries_the_count(self, events: list[Event]) -> None:
        for _ in range(3):
            add_one(read_ann())
        counts = [(event.enforced, event.count) for event in events if type(event) is Violation]
        assert counts == [(False, 1), (False, 2), (False, 3)]

    def test_the_summary_has_each_site_the_most_frequent_first(self) -> None:
        read_ann().put()
        for _ in range(3):
            add_one(read_ann())
        often, once = userlock.violations()
        assert (often.violation, often.kind, often.count) == ("PutWithoutLock", "TestedLearner", 3)
        assert often.put_at.endswith("in add_one")
        assert "test_log_mode.py" in often.put_at
        assert often.read_at.endswith("in read_ann")
        assert once.count == 1
        assert often.since >= once.since

    def test_a_new_entity_has_no_read_site(self) -> None:
        Learner(id="bob").put()
        (seen,) = userlock.violations()
        assert (seen.violation, seen.read_at) == ("CreatedWithoutLock", "")

    def test_after_a_reset_it_begins_again(self, caplog: pytest.LogCaptureFixture) -> None:
        add_one(read_ann())
        REPORTS.reset()
        assert userlock.violations() == []
        add_one(read_ann())
        assert len(caplog.records) == 2


def test_a_structured_log_has_the_facts(caplog: pytest.LogCaptureFixture) -> None:
    """They are an extra for most JSON formatters, and in `json_fields` for Google's."""
    add_one(read_ann())
    fields = vars(caplog.records[0])
    facts = json.loads(json.dumps(fields["userlock_site"]))
    assert fields["json_fields"] == {"userlock_site": facts}
    assert (facts["violation"], facts["kind"]) == ("PutWithoutLock", "TestedLearner")
    assert facts["put"]["file"] == facts["read"]["file"] == __file__
    assert (facts["put"]["function"], facts["read"]["function"]) == ("add_one", "read_ann")
    assert facts["put"]["line"] == add_one.__code__.co_firstlineno + 2


def test_a_helper_is_passed_over_and_its_caller_named() -> None:
    def careless() -> None:
        helper.save(helper.load(read_ann().key))

    def careless_too() -> None:
        helper.save(read_ann())

    careless()
    careless_too()
    assert {seen.put_at.rpartition(".")[2] for seen in userlock.violations()} == {
        "careless",
        "careless_too",
    }
    assert "in test_a_helper_is_passed_over" in userlock.violations()[0].read_at
