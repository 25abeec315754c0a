"""Flags follow the entities: after lost jobs, killed workers, and changes at the same time."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import datastore as plain_datastore
from google.cloud import ndb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import userlock
from tests.contract.constraints.models import degraded_service
from tests.contract.constraints.quotas.conftest import Book, Reader, Shelves
from tests.contract.ndb.servers import Wire
from tests.contract.outbox.conftest import Died, let_die
from userlock.constraints import Quota, quota
from userlock.constraints.quota import QuotaRow
from userlock.outbox.rows import JobRow
from userlock.stores import MemoryStore
from userlock_emulator import Emulator


def row(owner: str = "ann") -> Any:
    key = ndb.Key("UserLockOwner", f"={owner}", QuotaRow, "=books", namespace="")
    return key.get(use_cache=False)


def add(shelves: Shelves, *numbers: int, owner: str = "ann") -> None:
    for number in numbers:
        shelves.change(owner, number, "create")


def test_new_ones_start_under_quota(shelves: Shelves) -> None:
    add(shelves, 0, 1, 2, 3)
    assert set(shelves.flags("ann").values()) == {False}
    assert row().dirty is not None
    shelves.run_jobs()
    assert shelves.flags("ann") == {0: False, 1: False, 2: True, 3: True}
    assert row().dirty is None
    assert JobRow.query(namespace="").count() == 0


def test_entities_that_no_commit_could_carry_together(shelves: Shelves) -> None:
    add(shelves, *range(13))
    with userlock.global_lock("ann"):
        for book in shelves.select("ann"):
            book.scan = b"x" * 1_000_000
            book.put()
    shelves.run_jobs()
    assert sum(shelves.flags("ann").values()) == 11


def test_changes_of_all_kinds(shelves: Shelves) -> None:
    add(shelves, 0, 1, 2, owner="bob")
    add(shelves, 0, 1, 2, 3)
    shelves.run_jobs()
    shelves.change("ann", 0, "remove")
    shelves.run_jobs()
    assert shelves.flags("ann") == {1: False, 2: False, 3: True}
    shelves.change("ann", 1, "delete")
    shelves.run_jobs()
    assert shelves.flags("ann") == {2: False, 3: False}
    shelves.change("ann", 0, "return")
    shelves.change("ann", 0, "plan one")
    shelves.run_jobs()
    assert shelves.flags("ann") == {0: False, 2: True, 3: True}
    shelves.change("ann", 0, "plan none")
    shelves.run_jobs()
    assert set(shelves.flags("ann").values()) == {False}
    assert shelves.flags("bob") == {0: False, 1: False, 2: True}, "others are left alone"


def test_only_flags_that_differ_are_written(shelves: Shelves) -> None:
    add(shelves, 0, 1, 2, 3)
    select = shelves.quota._select
    shelves.quota._select = lambda owner: [*select(owner), *select(owner)]  # each counts once
    with userlock.global_lock("ann"):
        assert shelves.quota.recount("ann") == 2
        assert shelves.quota.recount("ann") == 0


def test_stamps(shelves: Shelves) -> None:
    """In the transaction of the change, once; or on their own."""

    def change(*, fails: bool = False) -> None:
        shelves.quota.stamp("ann")
        shelves.quota.stamp("ann")
        if fails:
            raise LookupError

    with pytest.raises(userlock.JobStagedOutside, match="stamp_now"):
        shelves.quota.stamp("ann")
    with pytest.raises(LookupError):
        ndb.transaction(lambda: change(fails=True))
    assert (row(), JobRow.query(namespace="").count()) == (None, 0)
    ndb.transaction(change)
    assert JobRow.query(namespace="").count() == 1
    shelves.quota.stamp_now("bob")
    assert row("bob").dirty is not None


def test_a_stamp_needs_no_look_up(shelves: Shelves, ndb_client: ndb.Client) -> None:
    wire = Wire(ndb_client)
    ndb.transaction(lambda: shelves.quota.stamp("ann"))
    assert wire.names == ["begin_transaction", "commit"]


def test_a_limit_that_is_none(shelves: Shelves) -> None:
    add(shelves, 0)
    limits: list[Any] = ["3", 2.5, True]
    for limit in limits:
        shelves.quota._limit = {"ann": limit}.get
        with pytest.raises(TypeError, match="limit gave"):
            shelves.quota.recount("ann")


def test_options_of_no_use(shelves: Shelves) -> None:
    names: list[Any] = ["", "a|b", "a b", None]
    for name in names:
        with pytest.raises(userlock.ConfigurationError):
            Quota(name, shelves.outbox, limit=shelves.limit, select=shelves.select)
    with pytest.raises(userlock.ConfigurationError, match="outbox"):
        Quota("books", None, limit=shelves.limit, select=shelves.select)  # type: ignore[arg-type]


# --- crashes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["", "_wanted", "_write", "_clear", "between two commits"])
def test_a_worker_that_dies(shelves: Shelves, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or whose message is lost."""
    monkeypatch.setattr(quota, "_BATCH", 1)
    add(shelves, 0, 1, 2, 3)
    write = shelves.quota._write

    def write_one(flags: dict[Any, bool], seen: Any) -> int:
        shelves.quota._write = write  # type: ignore[method-assign]
        write(dict([next(iter(flags.items()))]), seen)
        raise Died

    if step == "between two commits":
        shelves.quota._write = write_one  # type: ignore[method-assign]
    elif step:
        let_die(monkeypatch, Quota, step)
    if step:
        with pytest.raises(Died):
            shelves.run_jobs()
    shelves.mailbox.messages.clear()
    assert row().dirty is not None
    shelves.clock.advance(1000)
    shelves.relay()
    assert shelves.flags("ann") == {0: False, 1: False, 2: True, 3: True}
    assert row().dirty is None


@pytest.mark.parametrize("cleared", [True, False])
def test_a_job_that_was_paused_writes_no_old_flags(shelves: Shelves, cleared: bool) -> None:
    """Meanwhile others have changed the owner, and perhaps counted."""
    add(shelves, 0, 1, 2, 3)
    wanted = shelves.quota._wanted

    def paused(owner: str) -> Any:
        found = wanted(owner)
        shelves.quota._wanted = wanted  # type: ignore[method-assign]
        shelves.change("ann", 0, "plan none")
        if cleared:
            shelves.quota.recount("ann")
        return found

    shelves.quota._wanted = paused  # type: ignore[method-assign]
    with userlock.global_lock("ann"):
        assert shelves.quota.recount("ann") == 0
    assert set(shelves.flags("ann").values()) == {False}
    assert (row().dirty is None) is cleared


@pytest.mark.parametrize("kind", ["UserLockQuota", "Book"])
def test_lost_replies(shelves: Shelves, datastore: Emulator, kind: str) -> None:
    datastore.faults.drop_reply(3, kind=kind)
    add(shelves, 0, 1, 2)
    datastore.faults.drop_reply(3, kind=kind)
    shelves.run_jobs()
    shelves.relay()
    assert shelves.flags("ann") == {0: False, 1: False, 2: True}
    assert row().dirty is None


def change_during_the_count(shelves: Shelves) -> None:
    """Let another request add a book between the count and the clearing."""
    wanted = shelves.quota._wanted
    once = [True]

    def counted(owner: str) -> Any:
        found = wanted(owner)
        if once.pop() if once else False:
            Book(parent=ndb.Key(Reader, "ann"), id=99, order=98).put()
            shelves.quota.stamp_now("ann")
        return found

    shelves.quota._wanted = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("looks", [True, False])
def test_a_change_during_the_count_is_counted_again(
    shelves: Shelves, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """The control: cleared without a look at the stamp, it would be lost."""

    def clear(self: Quota, seen: Any) -> None:
        def cleared() -> None:
            found = seen.key.get()
            found.dirty = None
            found.put()

        ndb.transaction(cleared)

    if not looks:
        monkeypatch.setattr(Quota, "_clear", clear)
    add(shelves, 0, 1)
    change_during_the_count(shelves)
    shelves.run_jobs()
    assert shelves.flags("ann") == {0: False, 1: False, 98: looks}


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


# --- the nightly check ------------------------------------------------------------------------


def test_the_nightly_check_finds_what_others_left(shelves: Shelves) -> None:
    add(shelves, 0, 1, 2)
    add(shelves, 0, 1, 2, owner="bob")
    add(shelves, 0, owner="cid")
    shelves.run_jobs()
    with userlock.global_lock("bob"):
        book = ndb.Key(Reader, "bob", Book, 3).get()
        book.over_quota = False  # another program
        book.put()
    assert shelves.quota.check_recent() == (3, 1, 0)
    shelves.run_jobs()
    assert shelves.flags("bob") == {0: False, 1: False, 2: True}
    shelves.clock.advance(27 * 3600)
    assert shelves.quota.check_recent() == (0, 0, 0)


@pytest.mark.parametrize("dead", [True, False])
def test_a_dead_job_is_staged_again_but_none_that_is_about_to_run(
    shelves: Shelves, dead: bool
) -> None:
    add(shelves, 0, 1, 2)
    if dead:
        shelves.mailbox.messages.clear()
        for each in JobRow.query(namespace=""):
            ndb.transaction(each.key.delete)
        shelves.clock.advance(50 * 3600)
    assert shelves.quota.check_recent() == (1, int(dead), 0)
    shelves.run_jobs()
    assert shelves.flags("ann") == {0: False, 1: False, 2: True}


def test_one_owners_error_stops_no_others(
    shelves: Shelves, caplog: pytest.LogCaptureFixture
) -> None:
    add(shelves, 0)
    for owner in ("bob", "x" * 1_500):
        add(shelves, 0, owner=owner)
    shelves.run_jobs()
    plain = plain_datastore.Client()
    for row in plain.query(kind="UserLockQuota").fetch():
        if row.key.parent.name != "=ann":
            row["owner"] = ["bob", "cem"]
            plain.put(row)
    assert shelves.quota.check_recent() == (2, 0, 1), "without the one that only its row tells"

    def limit(owner: str) -> int:
        raise LookupError(owner)

    shelves.quota._limit = limit
    assert shelves.quota.check_recent() == (2, 0, 2)
    assert "cannot be checked" in caplog.text
    assert "cannot be read" in caplog.text


def test_the_nightly_check_ends(shelves: Shelves, datastore: Emulator) -> None:
    add(shelves, 0)
    assert shelves.quota.check_recent(stopped=lambda: True) == (0, 0, 0)
    datastore.faults.unavailable(None)
    with pytest.raises(google_errors.GoogleAPIError):
        shelves.quota.check_recent()


# --- degraded locks ---------------------------------------------------------------------------


def test_many_changes_while_memcached_is_down(shelves: Shelves, ndb_client: ndb.Client) -> None:
    userlock.configure(service=degraded_service())
    errors: list[BaseException] = []

    def change(number: int) -> None:
        with ndb_client.context(cache_policy=False):
            for _ in range(50):
                try:
                    shelves.change("ann", number, "create")
                    return
                except (google_errors.Aborted, google_errors.RetryError):
                    continue
                except BaseException as error:
                    errors.append(error)
                    return
            errors.append(TimeoutError("contention"))

    threads = [threading.Thread(target=change, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    shelves.run_jobs()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    for _ in range(10):
        shelves.run_jobs()
        shelves.clock.advance(1000)
        shelves.outbox.relay()
    assert shelves.flags("ann") == {number: number >= 2 for number in range(16)}
    assert row().dirty is None


def test_an_entity_that_cannot_be_put_holds_no_other_up(
    shelves: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, userlock.global_lock("ann"):
        patch.setattr(Book, "_userlock_rows", None)  # before there was the constraint
        for number in range(5):
            isbn = "the same" if number > 2 else f"{number}"
            Book(id=number + 1, parent=ndb.Key(Reader, "ann"), order=number, isbn=isbn).put()
    shelves.quota.stamp_now("ann")
    shelves.run_jobs()
    assert shelves.flags("ann") == {0: False, 1: False, 2: True, 3: True, 4: False}
    assert JobRow.query(namespace="").count() == 0


# --- any changes, crashes and lost jobs ---------------------------------------------------------

CHANGES = ("create", "remove", "return", "delete", "plan none", "plan zero", "plan one", "plan two")
CRASHES = ("_wanted", "_write", "_clear")

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(CHANGES), st.sampled_from(["ann", "bob"]), st.integers(0, 5)),
        st.tuples(st.just("run"), st.just(""), st.just(0)),
        st.tuples(st.just("lose"), st.just(""), st.just(0)),
        st.tuples(st.just("die"), st.sampled_from(CRASHES), st.just(0)),
        st.tuples(st.just("drop"), st.sampled_from(["UserLockQuota", "Book"]), st.just(0)),
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
    shelves: Shelves, datastore: Emulator, store: MemoryStore, steps: list[tuple[str, Any, int]]
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
            with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Died):
                let_die(patch, Quota, which)
                shelves.run_jobs()
        else:
            shelves.change(which, number, what)
    datastore.faults.clear()
    for _ in range(2):
        shelves.clock.advance(1000)
        shelves.outbox.relay()
        shelves.run_jobs()
    for owner in ("ann", "bob"):
        assert shelves.flags(owner) == shelves.right_flags(owner)
    assert not any(each.dirty for each in QuotaRow.query(namespace="").fetch(use_cache=False))
