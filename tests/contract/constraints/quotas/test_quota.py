"""Flags follow the entities: after lost jobs, killed workers, and changes at the same time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.contract.constraints.quotas.conftest import Book, Reader, Shelves
from userlock.constraints import Quota, quota
from userlock.constraints.quota import QuotaRow
from userlock.outbox.rows import JobRow


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


def test_changes_of_all_kinds(shelves: Shelves) -> None:
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


def test_only_flags_that_differ_are_written(shelves: Shelves, ndb_client: ndb.Client) -> None:
    add(shelves, 0, 1, 2)
    shelves.run_jobs()
    before = {each.key: each.userlock_version for each in _versions()}
    add(shelves, 3)
    shelves.run_jobs()
    after = {each.key: each.userlock_version for each in _versions()}
    assert {key for key in before if before[key] != after[key]} == set()


def _versions() -> list[Any]:
    found = Book.query().fetch(use_cache=False)
    for each in found:
        each.userlock_version = userlock.ndb.provenance.version_of(each)
    return list(found)


def test_other_owners_are_left_alone(shelves: Shelves) -> None:
    add(shelves, 0, 1, 2, owner="bob")
    shelves.run_jobs()
    add(shelves, 0)
    shelves.run_jobs()
    assert shelves.flags("bob") == {0: False, 1: False, 2: True}


def test_outside_of_a_transaction_it_is_refused(shelves: Shelves) -> None:
    with pytest.raises(userlock.JobStagedOutside, match="stamp_now"):
        shelves.quota.stamp("ann")
    shelves.quota.stamp_now("ann")
    assert row().dirty is not None


def test_a_change_that_is_rolled_back_leaves_nothing(shelves: Shelves) -> None:
    def change() -> None:
        shelves.quota.stamp("ann")
        raise LookupError

    with pytest.raises(LookupError):
        ndb.transaction(change)
    assert row() is None
    assert JobRow.query(namespace="").count() == 0


def test_two_stamps_of_one_transaction(shelves: Shelves) -> None:
    def change() -> None:
        shelves.quota.stamp("ann")
        shelves.quota.stamp("ann")

    ndb.transaction(change)
    assert JobRow.query(namespace="").count() == 1


def test_a_stamp_needs_no_look_up(shelves: Shelves, ndb_client: ndb.Client) -> None:
    from tests.contract.ndb.servers import Wire

    wire = Wire(ndb_client)
    ndb.transaction(lambda: shelves.quota.stamp("ann"))
    assert wire.names == ["begin_transaction", "commit"]


@pytest.mark.parametrize("limit", ["3", 2.5, True])
def test_a_limit_that_is_none(shelves: Shelves, limit: Any) -> None:
    shelves.quota._limit = lambda owner: limit
    add(shelves, 0)
    with pytest.raises(TypeError, match="limit gave"):
        shelves.quota.recount("ann")


@pytest.mark.parametrize("name", ["", "a|b", "a b", None])
def test_names_of_no_use(shelves: Shelves, name: Any) -> None:
    with pytest.raises(userlock.ConfigurationError):
        Quota(name, shelves.outbox, limit=shelves.limit, select=shelves.select)


# --- crashes ----------------------------------------------------------------------------------


class Killed(BaseException):
    """The worker's process ends here."""


def kill_at(shelves: Shelves, method: str, times: int = 1) -> Callable[[], None]:
    """Let the worker die before a step of the quota, so many times. Returns the undoing."""
    original = getattr(shelves.quota, method)
    left = [times]

    def dying(*args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise Killed
        return original(*args)

    setattr(shelves.quota, method, dying)
    return lambda: setattr(shelves.quota, method, original)


@pytest.mark.parametrize("step", ["_wanted", "_write", "_clear"])
def test_a_worker_that_dies(shelves: Shelves, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "_BATCH", 1)
    add(shelves, 0, 1, 2, 3)
    shelves.mailbox.messages.clear()
    kill_at(shelves, step)
    shelves.clock.advance(120)
    shelves.outbox.relay()
    with pytest.raises(Killed):
        shelves.run_jobs()
    assert row().dirty is not None
    shelves.relay()
    shelves.clock.advance(1000)
    shelves.relay()
    assert shelves.flags("ann") == {0: False, 1: False, 2: True, 3: True}
    assert row().dirty is None


def test_a_worker_that_dies_between_two_commits(shelves: Shelves) -> None:
    add(shelves, 0, 1, 2, 3)
    write = shelves.quota._write

    def write_one(flags: dict[Any, bool], seen: Any) -> int:
        write(dict([next(iter(flags.items()))]), seen)
        raise Killed

    shelves.quota._write = write_one  # type: ignore[method-assign]
    with pytest.raises(Killed):
        shelves.run_jobs()
    assert sorted(shelves.flags("ann").values()) == [False, False, False, True]
    shelves.quota._write = write  # type: ignore[method-assign]
    shelves.relay()
    assert shelves.flags("ann") == {0: False, 1: False, 2: True, 3: True}


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


def test_a_lost_message_costs_nothing(shelves: Shelves) -> None:
    add(shelves, 0, 1, 2)
    shelves.mailbox.messages.clear()
    shelves.relay()
    assert shelves.flags("ann") == {0: False, 1: False, 2: True}


@pytest.mark.parametrize("kind", ["UserLockQuota", "TestedBook"])
def test_lost_replies(shelves: Shelves, datastore: userlock_emulator.Emulator, kind: str) -> None:
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


def test_a_change_during_the_count_is_counted_again(shelves: Shelves) -> None:
    add(shelves, 0, 1)
    change_during_the_count(shelves)
    shelves.mailbox.deliver(shelves.mailbox.messages.pop(0).key)
    shelves.run_jobs()
    assert shelves.flags("ann") == {0: False, 1: False, 98: True}


def test_cleared_without_a_look_at_the_stamp_it_would_be_lost(
    shelves: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""

    def clear(self: Quota, seen: Any) -> None:
        def cleared() -> None:
            found = seen.key.get()
            found.dirty = None
            found.put()

        ndb.transaction(cleared)

    monkeypatch.setattr(Quota, "_clear", clear)
    add(shelves, 0, 1)
    change_during_the_count(shelves)
    shelves.run_jobs()
    assert shelves.flags("ann") == {0: False, 1: False, 98: False}


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


def test_a_dead_job_is_staged_again(shelves: Shelves) -> None:
    add(shelves, 0, 1, 2)
    shelves.mailbox.messages.clear()
    for each in JobRow.query(namespace=""):
        ndb.transaction(each.key.delete)
    shelves.clock.advance(50 * 3600)
    assert shelves.quota.check_recent() == (1, 1, 0)
    shelves.run_jobs()
    assert shelves.flags("ann") == {0: False, 1: False, 2: True}


def test_a_job_that_is_about_to_run_is_not_staged_again(shelves: Shelves) -> None:
    add(shelves, 0, 1, 2)
    assert shelves.quota.check_recent() == (1, 0, 0)


def test_one_owners_error_stops_no_others(
    shelves: Shelves, caplog: pytest.LogCaptureFixture
) -> None:
    add(shelves, 0)
    add(shelves, 0, owner="bob")
    shelves.run_jobs()

    def limit(owner: str) -> int:
        raise LookupError(owner)

    shelves.quota._limit = limit
    assert shelves.quota.check_recent() == (2, 0, 2)
    assert "cannot be checked" in caplog.text


def test_without_datastore_it_ends(shelves: Shelves, datastore: userlock_emulator.Emulator) -> None:
    datastore.faults.unavailable(None)
    with pytest.raises(google_errors.GoogleAPIError):
        shelves.quota.check_recent()


def test_it_can_be_stopped(shelves: Shelves) -> None:
    add(shelves, 0)
    assert shelves.quota.check_recent(stopped=lambda: True) == (0, 0, 0)


# --- degraded locks ---------------------------------------------------------------------------


def test_many_changes_while_memcached_is_down(shelves: Shelves, ndb_client: ndb.Client) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    service = userlock.LockService.from_url(f"memcache://127.0.0.1:{port}")
    userlock.configure(service=service)
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
        patch.setattr(Book, "_userlock_constraints", ())  # before there was the constraint
        for number in range(5):
            isbn = "the same" if number > 2 else f"{number}"
            Book(id=number + 1, parent=ndb.Key(Reader, "ann"), order=number, isbn=isbn).put()
    shelves.quota.stamp_now("ann")
    shelves.run_jobs()
    assert shelves.flags("ann") == {0: False, 1: False, 2: True, 3: True, 4: False}
    assert JobRow.query(namespace="").count() == 0


def test_an_entity_that_is_given_twice_counts_once(
    shelves: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(shelves, 0, 1)
    select = shelves.select
    monkeypatch.setattr(shelves.quota, "_select", lambda owner: [*select(owner), *select(owner)])
    shelves.run_jobs()
    assert shelves.flags("ann") == {0: False, 1: False}
    assert shelves.quota.state("ann").counted == 2


def test_an_outbox_of_no_use() -> None:
    with pytest.raises(userlock.ConfigurationError, match="outbox"):
        Quota("books", None, limit=Shelves.limit, select=Shelves.select)  # type: ignore[arg-type]
