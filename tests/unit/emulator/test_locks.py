"""Reader/writer locks: the waits, their order, and the aborted ones."""

from functools import partial

import pytest

from emulator.datastore import locks as locks_module
from emulator.datastore.catalog import Partition
from emulator.datastore.errors import Code, DatastoreError
from emulator.datastore.locks import LockTable, Owner
from tests.unit.emulator.waiting import Started, wait_until_queued

PARTITION = Partition("p", "", "")
A, B, C = ((PARTITION, name) for name in (b"a", b"b", b"c"))


@pytest.fixture
def locks() -> LockTable:
    return LockTable(sweep=lambda: None)


def assert_aborted(started: Started) -> None:
    with pytest.raises(DatastoreError) as caught:
        started.result()
    assert caught.value.code is Code.ABORTED


def test_readers_share(locks: LockTable) -> None:
    for _ in range(3):
        locks.share(Owner(), [A])
    assert locks.waiting == 0


def test_a_writer_waits_for_all_readers(locks: LockTable) -> None:
    readers = [Owner(), Owner()]
    for reader in readers:
        locks.share(reader, [A])
    writer = Started(lambda: locks.take(Owner(), [A]))
    wait_until_queued(locks, 1)
    locks.release(readers[0])
    assert locks.waiting == 1
    locks.release(readers[1])
    writer.result()


def test_a_reader_waits_for_a_writer(locks: LockTable) -> None:
    writer = Owner()
    locks.take(writer, [A])
    reader = Started(lambda: locks.share(Owner(), [A]))
    wait_until_queued(locks, 1)
    locks.share(Owner(), [B])
    locks.release(writer)
    reader.result()


def test_new_readers_do_not_overtake_a_waiting_writer(locks: LockTable) -> None:
    early = Owner()
    locks.share(early, [A])
    owner = Owner()
    writer = Started(lambda: locks.take(owner, [A]))
    wait_until_queued(locks, 1)
    late = Started(lambda: locks.share(Owner(), [A]))
    wait_until_queued(locks, 2)
    locks.release(early)
    writer.result()
    assert not late.done
    locks.release(owner)
    late.result()


def test_an_owner_may_share_what_it_shares_already(locks: LockTable) -> None:
    early = Owner()
    locks.share(early, [A])
    owner = Owner()
    writer = Started(lambda: locks.take(owner, [A]))
    wait_until_queued(locks, 1)
    locks.share(early, [A])
    locks.release(early)
    writer.result()


def test_the_only_reader_may_become_the_writer_ahead_of_the_queue(locks: LockTable) -> None:
    reader = Owner()
    locks.share(reader, [A])
    stranger = Started(lambda: locks.take(Owner(), [A]))
    wait_until_queued(locks, 1)
    locks.take(reader, [A])
    locks.release(reader)
    stranger.result()


def test_several_entities_are_granted_as_a_whole(locks: LockTable) -> None:
    reader = Owner()
    locks.share(reader, [B])
    owner = Owner()
    writer = Started(lambda: locks.take(owner, [A, B]))
    wait_until_queued(locks, 1)
    # The waiting writer does not hold A, so a writer of A alone is only queued behind it.
    assert owner.exclusive == set()
    locks.release(reader)
    writer.result()
    assert owner.exclusive == {A, B}


def test_of_two_readers_that_want_to_write_the_younger_is_aborted(locks: LockTable) -> None:
    old, young = Owner(), Owner()
    locks.share(old, [A])
    locks.share(young, [A])
    first = Started(lambda: locks.take(old, [A]))
    wait_until_queued(locks, 1)
    with pytest.raises(DatastoreError):
        locks.take(young, [A])
    first.result()
    assert young.aborted


def test_the_younger_is_aborted_though_it_came_first(locks: LockTable) -> None:
    old, young = Owner(), Owner()
    locks.share(old, [A])
    locks.share(young, [A])
    first = Started(lambda: locks.take(young, [A]))
    wait_until_queued(locks, 1)
    locks.take(old, [A])
    assert_aborted(first)


def test_a_long_cycle_is_found(locks: LockTable) -> None:
    owners = [Owner(), Owner(), Owner()]
    for owner, entity in zip(owners, (A, B, C), strict=True):
        locks.share(owner, [entity])
    first = Started(lambda: locks.take(owners[0], [B]))
    wait_until_queued(locks, 1)
    second = Started(lambda: locks.take(owners[1], [C]))
    wait_until_queued(locks, 2)
    with pytest.raises(DatastoreError):
        locks.take(owners[2], [A])
    second.result()
    locks.release(owners[1])
    first.result()


def test_many_readers_that_all_want_to_write(locks: LockTable) -> None:
    owners = [Owner() for _ in range(20)]
    for owner in owners:
        locks.share(owner, [A])
    started = [Started(partial(locks.take, owner, [A])) for owner in owners]
    started[0].result()
    for loser in started[1:]:
        assert_aborted(loser)


def test_no_request_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_module, "_SWEEP_SECONDS", 0.001)
    now = [0.0]
    sweeps = []

    def sweep() -> None:
        sweeps.append(now[0])
        now[0] += locks_module.LOCK_TIMEOUT_SECONDS

    locks = LockTable(sweep, monotonic=lambda: now[0])
    locks.share(Owner(), [A])
    with pytest.raises(DatastoreError) as caught:
        locks.take(Owner(), [A])
    assert caught.value.code is Code.ABORTED
    assert sweeps == [0.0]
    assert locks.waiting == 0


def test_an_owner_that_was_aborted_gets_nothing(locks: LockTable) -> None:
    owner = Owner()
    owner.aborted = True
    with pytest.raises(DatastoreError):
        locks.share(owner, [A])
    locks.take(Owner(), [A])
