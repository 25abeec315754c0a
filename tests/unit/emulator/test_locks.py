"""Reader/writer locks: the waits, their order, and the aborted ones."""

import pytest

from tests.unit.emulator.builders import key
from tests.unit.emulator.subject import refused
from tests.unit.emulator.waiting import Started
from userlock_emulator.datastore import locks as locks_module
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.encoding import encode_key
from userlock_emulator.datastore.errors import CONTENTION, Code, DatastoreError
from userlock_emulator.datastore.locks import LockTable, Owner
from userlock_emulator.datastore.transactions import Transaction

PARTITION = Partition("p", "", "")
A, B, C = ((PARTITION, name) for name in (b"a", b"b", b"c"))


@pytest.fixture
def locks() -> LockTable:
    return LockTable(sweep=lambda: None)


def wait_until_queued(locks: LockTable, count: int) -> None:
    """Return when `count` requests wait. Woken by the lock table, never by time."""
    with locks._condition:
        assert locks._condition.wait_for(lambda: len(locks._queue) == count, 10)


def test_readers_and_writers_take_turns(locks: LockTable) -> None:
    early = [Owner(), Owner()]
    for reader in early:
        locks.share(reader, [A])
    owner = Owner()
    writer = Started(lambda: locks.take(owner, [A]))
    wait_until_queued(locks, 1)
    # A new reader does not overtake it; one that shares already may do so again.
    late = Started(lambda: locks.share(Owner(), [A]))
    wait_until_queued(locks, 2)
    locks.share(early[0], [A])
    locks.share(Owner(), [B])
    locks.release(early[0])
    assert locks.waiting == 2
    locks.release(early[1])
    writer.result()
    assert not late.done
    locks.release(owner)
    late.result()


@pytest.mark.parametrize("first", ["old", "young"])
def test_of_two_readers_that_want_to_write_the_younger_is_aborted(
    locks: LockTable, first: str
) -> None:
    old, young = Owner(), Owner()
    locks.share(old, [A])
    locks.share(young, [A])
    waiting = Started(lambda: locks.take(old if first == "old" else young, [A]))
    wait_until_queued(locks, 1)
    if first == "old":
        with refused(code=Code.ABORTED):
            locks.take(young, [A])
        waiting.result()
    else:
        locks.take(old, [A])
        with refused(code=Code.ABORTED):
            waiting.result()
    with refused(code=Code.ABORTED):
        locks.share(young, [B])


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


def test_a_long_cycle_is_found(locks: LockTable) -> None:
    owners = [Owner(), Owner(), Owner()]
    for owner, entity in zip(owners, (A, B, C), strict=True):
        locks.share(owner, [entity])
    first = Started(lambda: locks.take(owners[0], [B]))
    wait_until_queued(locks, 1)
    second = Started(lambda: locks.take(owners[1], [C]))
    wait_until_queued(locks, 2)
    with refused(code=Code.ABORTED):
        locks.take(owners[2], [A])
    second.result()
    locks.release(owners[1])
    first.result()


def owned(name: bytes, began: float = 0.0, client: str = "") -> Owner:
    transaction = Transaction(
        name * 20, ("p", ""), read_only=False, snapshot=0, began=began, last_used=began
    )
    return Owner(transaction=transaction, client=client)


def test_the_request_that_gives_up_names_the_transaction_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks_module, "_SWEEP_SECONDS", 0.001)
    now = [100.0]

    def sweep() -> None:
        now[0] += locks_module.LOCK_TIMEOUT_SECONDS

    locks = LockTable(sweep, monotonic=lambda: now[0])
    entity = (Partition("p", "", "n"), encode_key(key("Task", "a")))
    stuck = owned(b"s", began=90.0)
    assert stuck.transaction is not None
    stuck.transaction.client = "gl-python/3.11"
    locks.share(stuck, [entity])
    with pytest.raises(DatastoreError) as caught:
        locks.take(owned(b"w"), [entity])
    assert caught.value.message == (
        f"{CONTENTION} This request has waited 20 s for the lock of"
        " KEY(NAMESPACE('n'), Task, 'a'), behind transaction 73737373 (begun 30 s ago, last used"
        " 30 s ago, by gl-python/3.11). To fix it: end that transaction in its client, or see"
        " /viewer/transactions at the emulator's address."
    )
    assert "73737373" in caplog.text
