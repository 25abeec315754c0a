"""Many transactions on one entity: nothing is lost, in any concurrency mode."""

import threading

import pytest

from tests.unit.emulator import subject as subjects
from tests.unit.emulator.builders import entity, key
from tests.unit.emulator.subject import Subject
from userlock_emulator.datastore.concurrency import Optimistic, Unvalidated
from userlock_emulator.datastore.engine import ControlFactory
from userlock_emulator.datastore.entity_groups import OptimisticWithEntityGroups
from userlock_emulator.datastore.errors import Code, DatastoreError
from userlock_emulator.datastore.pessimistic import Pessimistic
from userlock_emulator.datastore.protos import (
    Mutation,
)

KEY = key("Counter", 1)


def n_of(engine: Subject, transaction: bytes = b"") -> int | None:
    found = engine.lookup(KEY, transaction=transaction).found
    return found[0].entity.properties["n"].integer_value if found else None


def _increment_concurrently(control: ControlFactory, threads: int, rounds: int) -> tuple[int, int]:
    """Run transactional increments in threads; return the total and the number of aborts."""
    with subjects.subject(control) as engine:
        engine.put(entity(KEY, n=0))
        aborted: list[int] = []
        all_have_read = threading.Barrier(threads)

        def attempt(*, first: bool) -> bool:
            transaction = engine.begin()
            n = n_of(engine, transaction)
            assert n is not None
            if first:
                all_have_read.wait(10)
            try:
                engine.commit(Mutation(upsert=entity(KEY, n=n + 1)), transaction=transaction)
            except DatastoreError as error:
                if error.code is not Code.ABORTED:
                    raise
                aborted.append(1)
                return False
            return True

        def work() -> None:
            done = int(attempt(first=True))
            while done < rounds:
                done += attempt(first=False)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        total = n_of(engine)
        assert total is not None
        return total, len(aborted)


@pytest.mark.parametrize("control", [Optimistic, Pessimistic, OptimisticWithEntityGroups])
def test_concurrent_increments_are_all_counted(control: ControlFactory) -> None:
    total, aborted = _increment_concurrently(control, threads=8, rounds=25)
    assert total == 200
    assert aborted > 0, "there was no contention: the test shows nothing"


def test_without_validation_concurrent_increments_are_lost() -> None:
    """The negative control."""
    total, aborted = _increment_concurrently(Unvalidated, threads=8, rounds=25)
    assert aborted == 0
    assert total < 200
