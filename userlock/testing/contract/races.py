"""Test that the primitives are atomic among threads, the contract's second part; and a fork."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable

import pytest

from userlock.lock.store import LeaseStore, Stored
from userlock.testing.contract.base import Race, StoreContract, created, exit_code, fork, found

_THREADS = 8
_ROUNDS = 10
_LINES = 25
_COMMANDS = 100

#: The changes of a record that one of many wins. None: it was not granted.
_CHANGES: dict[str, Callable[[LeaseStore, str, object, bytes], object]] = {
    "create": lambda store, lock_id, _, record: store.create(lock_id, record, 60),
    "swap": lambda store, lock_id, version, record: store.swap(lock_id, version, record, 60),
    "remove": lambda store, lock_id, version, _: store.remove(lock_id, version) or None,
}


class RaceContract(StoreContract):
    """Test concurrent threads on one store."""

    @pytest.mark.parametrize("verb", list(_CHANGES))
    def test_one_of_many_wins(self, store: LeaseStore, verb: str) -> None:
        for number in range(_ROUNDS):
            lock_id = f"round {number}"
            records = [b"by %d" % n for n in range(_THREADS)]
            version = None if verb == "create" else created(store.create(lock_id, b"first", 60))
            change = functools.partial(_CHANGES[verb], store, lock_id, version)
            answers = Race().run(*(functools.partial(change, record) for record in records))
            winners = [n for n, answer in enumerate(answers) if answer is not None]
            assert len(winners) == 1, f"{len(winners)} changes of one record were granted"
            if verb != "remove":
                assert found(store.read(lock_id)).record == records[winners[0]]
                assert store.remove(lock_id, answers[winners[0]])

    def test_no_line_is_lost_among_many(self, store: LeaseStore) -> None:
        created(store.create("ann", b"first", 60))

        def append(writer: int) -> list[Stored]:
            return [
                found(store.append("ann", b"\n" + _line(writer, number)))
                for number in range(_LINES)
            ]

        answers = Race().run(*(functools.partial(append, n) for n in range(_THREADS)))
        final = found(store.read("ann")).record
        first, *lines = final.split(b"\n")
        assert first == b"first"
        _assert_all_there(lines, writers=_THREADS)
        for writer, replies in enumerate(answers):
            for number, stored in enumerate(replies):
                assert final.startswith(stored.record), "append gave a state that never was"
                assert _line(writer, number) in stored.record.split(b"\n")

    def test_either_a_remove_or_an_append_comes_first(self, store: LeaseStore) -> None:
        """The append makes the remove fail, or finds no record: never both, never neither."""
        for number in range(_LINES):
            lock_id = f"round {number}"
            version = created(store.create(lock_id, b"first", 60))
            remove = functools.partial(store.remove, lock_id, version)
            append = functools.partial(store.append, lock_id, b"\nline")
            # The thread that is started last tends to be the first.
            if number % 2:
                removed, appended = Race().run(remove, append)
            else:
                appended, removed = Race().run(append, remove)
            after = store.read(lock_id)
            if removed:
                assert appended is None, "a record was removed after a line was added to it"
                assert after is None, "append created a record"
            else:
                assert isinstance(appended, Stored), "nothing was removed, and nothing added"
                assert found(after).record == b"first\nline"

    def test_no_increment_is_lost_among_appends(self, store: LeaseStore) -> None:
        """Four threads swap a counter in the first line, and two others append.

        An append before the read of a swap's writer is seen, one between the read and the swap
        makes the swap fail, and one after the swap adds to the new record.
        """
        created(store.create("ann", b"0", 60))
        race, counters, writers, each = Race(), 4, 2, 15

        def count() -> None:
            for _ in range(each):
                while True:
                    race.go_on("swaps hardly ever succeed")
                    stored = found(store.read("ann"))
                    number, *lines = stored.record.split(b"\n")
                    record = b"\n".join([b"%d" % (int(number) + 1), *lines])
                    if store.swap("ann", stored.version, record, 60) is not None:
                        break

        def append(writer: int) -> None:
            for number in range(_LINES):
                assert store.append("ann", b"\n" + _line(writer, number)) is not None

        race.run(
            *([count] * counters), *(functools.partial(append, writer) for writer in range(writers))
        )
        number, *lines = found(store.read("ann")).record.split(b"\n")
        assert int(number) == counters * each
        _assert_all_there(lines, writers=writers)

    def test_create_and_remove_keep_threads_apart(self, store: LeaseStore) -> None:
        """Use the register as a lock: waiters append a line, the holder removes the record."""
        inside: list[int] = []
        race = Race()

        def work(worker: int) -> None:
            for _ in range(_ROUNDS):
                joined = False
                while store.create("ann", b"held by %d" % worker, 60) is None:
                    race.go_on("the lock is never free")
                    if not joined:
                        store.append("ann", b"\n%d waits" % worker)
                        joined = True
                inside.append(worker)
                time.sleep(0.001)  # so that others have time to enter, if they can
                stored = found(store.read("ann"))
                assert stored.record.split(b"\n")[0] == b"held by %d" % worker
                assert inside == [worker], "two at once were granted the record"
                inside.remove(worker)
                while not store.remove("ann", stored.version):
                    race.go_on("the holder cannot remove its own record")
                    stored = found(store.read("ann"))

        race.run(*(functools.partial(work, worker) for worker in range(4)))
        assert store.read("ann") is None


class ForkContract(StoreContract):
    """Test a store that is used before a fork, and on both sides of it.

    A library with threads of its own (such as gRPC) may not survive a fork while a server of the
    tests runs on these threads too.
    """

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
    def test_a_forked_child_has_a_store_of_its_own(self, store: LeaseStore) -> None:
        """Parent and child do not disturb each other: no reply of one goes to the other."""
        created(store.create("ann", b"first", 60))
        # The child closes the pipe when it begins, so that both processes work at the same time.
        beginning, begins = os.pipe()

        def work() -> int:
            os.close(begins)
            good = store.create("child", b"first", 60) is not None
            for _ in range(_COMMANDS):
                good = good and found(store.append("child", b"\nby it")).record[:5] == b"first"
            good = good and found(store.read("ann")).record[:5] == b"first"
            store.close()
            return 0 if good else 2

        child = fork(work)
        os.close(begins)
        with os.fdopen(beginning, "rb") as pipe:
            pipe.read()
        expected = b"first"
        try:
            for number in range(_COMMANDS):
                expected += b"\n%d" % number
                assert found(store.append("ann", b"\n%d" % number)).record == expected
        finally:
            code = exit_code(child)
        assert code != 2, "the store gave a forked child wrong answers"
        assert code == 0, "the store raised in a forked child, or kept it waiting"
        assert found(store.read("ann")).record == expected


def _line(writer: int, number: int) -> bytes:
    # Long enough that half a line would be noticed.
    return b"writer %d line %d " % (writer, number) + b"%d" % number * 20


def _assert_all_there(lines: list[bytes], *, writers: int) -> None:
    """Assert that every writer's lines are there, whole and in order, some perhaps sent twice."""
    expected = {_line(writer, number) for writer in range(writers) for number in range(_LINES)}
    assert not set(lines) - expected, "lines were mixed up or cut"
    missing = expected - set(lines)
    assert not missing, f"{len(missing)} of {len(expected)} lines that were appended are lost"
    for writer in range(writers):
        mine = [line for line in dict.fromkeys(lines) if line.startswith(b"writer %d " % writer)]
        assert mine == [_line(writer, number) for number in range(_LINES)], "out of order"
