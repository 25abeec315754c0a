"""After any changes, crashes and lost jobs, two runs of the jobs put the flags right."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import userlock
import userlock_emulator
from tests.contract.constraints.quotas.conftest import Book, Reader, Shelves
from tests.contract.constraints.quotas.test_quota import kill_at
from tests.contract.outbox.conftest import Died
from userlock.constraints.quota import QuotaRow
from userlock.stores import MemoryStore

CHANGES = ("create", "remove", "return", "delete", "plan none", "plan zero", "plan one", "plan two")
CRASHES = ("_wanted", "_write", "_clear")

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(CHANGES), st.sampled_from(["ann", "bob"]), st.integers(0, 5)),
        st.tuples(st.just("run"), st.just(""), st.just(0)),
        st.tuples(st.just("lose"), st.just(""), st.just(0)),
        st.tuples(st.just("die"), st.sampled_from(CRASHES), st.just(0)),
        st.tuples(st.just("drop"), st.sampled_from(["UserLockQuota", "TestedBook"]), st.just(0)),
        st.tuples(st.just("forget"), st.sampled_from(["ann", "bob"]), st.just(0)),
    ),
    min_size=3,
    max_size=30,
)


@pytest.mark.slow
@given(steps=STEPS)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_flags_are_right_after_two_runs(
    shelves: Shelves,
    datastore: userlock_emulator.Emulator,
    store: MemoryStore,
    steps: list[tuple[str, Any, int]],
) -> None:
    datastore.reset()
    shelves.mailbox.messages.clear()
    for what, which, number in steps:
        if what == "run":
            shelves.run_jobs()
        elif what == "lose":
            shelves.mailbox.messages.clear()
        elif what == "forget":
            store.evict(which)
        elif what == "drop":
            datastore.faults.drop_reply(kind=which)
        elif what == "die":
            undo = kill_at(shelves, which)
            try:
                shelves.run_jobs()
            except Died:
                pass
            finally:
                undo()
        else:
            shelves.change(which, number, what)
    datastore.faults.clear()
    for _ in range(2):
        shelves.clock.advance(1000)
        shelves.outbox.relay()
        shelves.run_jobs()
    for owner in ("ann", "bob"):
        assert shelves.flags(owner) == shelves.right_flags(owner)
    assert [row.dirty for row in QuotaRow.query(namespace="").fetch(use_cache=False)].count(
        None
    ) == QuotaRow.query(namespace="").count()


def test_a_stamp_in_another_commit_may_be_lost(shelves: Shelves) -> None:
    """The negative control: the process dies between the change and the stamp."""

    def change(number: int) -> None:
        with userlock.global_lock("ann"):
            Book(id=number + 1, parent=ndb.Key(Reader, "ann"), order=number).put()
            if number == 2:
                raise Died
        shelves.quota.stamp_now("ann")

    change(0)
    change(1)
    shelves.run_jobs()
    with pytest.raises(Died):
        change(2)
    for _ in range(2):
        shelves.relay()
    assert shelves.flags("ann") == {0: False, 1: False, 2: False}
