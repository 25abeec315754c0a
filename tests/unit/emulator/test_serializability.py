"""Concurrent random transactions, in each mode: equivalent to a serial order.

The checker does not depend on modes, locks or snapshots. It only uses the results of each
transaction's reads, its writes, and its begin and end. Writers are ordered by their commits'
versions. Each must have read the state just before its own commit. A read-only transaction must
have read the state at some moment between its begin and its end.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from tests.unit.emulator import subject as subjects
from tests.unit.emulator.builders import entity, key
from tests.unit.emulator.subject import Subject, query, where
from userlock_emulator.datastore.concurrency import Optimistic, Unvalidated
from userlock_emulator.datastore.engine import ControlFactory
from userlock_emulator.datastore.entity_groups import OptimisticWithEntityGroups
from userlock_emulator.datastore.errors import Code, DatastoreError
from userlock_emulator.datastore.pessimistic import Pessimistic
from userlock_emulator.datastore.protos import KeyPb, Message, Mutation

#: An entity's name, and its value: a number to query by, and the writer.
State = Mapping[str, tuple[int, str]]
#: The result of a read in a given state.
Question = Callable[[State], object]


class NotSerializable(AssertionError):
    """A violation in a history."""


@dataclass
class Ran:
    """A committed transaction, or a put outside transactions: its reads, writes and version."""

    name: str
    began: float
    reads: list[tuple[Question, object]] = field(default_factory=list)
    writes: dict[str, tuple[int, str] | None] = field(default_factory=dict)
    version: int | None = None
    ended: float = 0.0

    def agrees_with(self, state: State) -> bool:
        return all(question(state) == answer for question, answer in self.reads)


def check(history: Sequence[Ran]) -> None:
    """Check a history that began with an empty database."""
    writers = sorted((ran for ran in history if ran.version is not None), key=_version)
    for before, after in itertools.pairwise(writers):
        if _version(before) == _version(after):
            raise NotSerializable(f"{before.name} and {after.name} have one version")
        if after.ended < before.began:
            raise NotSerializable(f"{after.name} had ended before {before.name} began")
    states = list(_states(writers))
    for position, writer in enumerate(writers):
        if not writer.agrees_with(states[position]):
            raise NotSerializable(f"{writer.name} did not read what it was written on")
    for reader in (ran for ran in history if ran.version is None):
        # It sees all writes acknowledged before its begin, and none that began after its end.
        earliest = sum(writer.ended < reader.began for writer in writers)
        latest = sum(writer.began < reader.ended for writer in writers)
        if not any(reader.agrees_with(state) for state in states[earliest : latest + 1]):
            raise NotSerializable(f"{reader.name} did not read any state that there was")


def _version(ran: Ran) -> int:
    assert ran.version is not None
    return ran.version


def _states(writers: Iterable[Ran]) -> Iterable[State]:
    """Yield the states before the first writer, between them, and after the last."""
    state: dict[str, tuple[int, str]] = {}
    yield state
    for writer in writers:
        state = dict(state)
        for name, written in writer.writes.items():
            if written is None:
                state.pop(name, None)
            else:
                state[name] = written
        yield state


GROUPS = ("a", "b")
NAMES = [group + digit for group in GROUPS for digit in "123"]
CLIENTS = 6
TRANSACTIONS = 60


@pytest.fixture(autouse=True)
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def key_of(name: str) -> KeyPb:
    return key("G", name[0], "K", name)


class Client:
    def __init__(self, engine: Subject, number: int, *, all_kinds_of_queries: bool) -> None:
        self._engine = engine
        self._number = number
        self._random = Random(number)
        self._queries = all_kinds_of_queries
        self.history: list[Ran] = []
        self.aborted = 0

    def run(self) -> None:
        for count in range(TRANSACTIONS):
            ran = Ran(f"{self._number}.{count}", time.monotonic())
            transaction = b""
            try:
                if self._random.random() < 0.9:
                    read_only = self._random.random() < 0.1
                    transaction = self._engine.begin(read_only=read_only)
                    self._read(ran, transaction)
                if transaction and (read_only or self._random.random() < 0.2):
                    self._engine.commit(transaction=transaction)
                else:
                    self._write(ran, transaction)
            except DatastoreError as error:
                if error.code is not Code.ABORTED:
                    raise
                self.aborted += 1
                if transaction:
                    self._engine.rollback(transaction)
            else:
                ran.ended = time.monotonic()
                self.history.append(ran)

    def _read(self, ran: Ran, transaction: bytes) -> None:
        for _ in range(self._random.randint(0, 3)):
            if self._random.random() < 0.5:
                ran.reads.append(self._look_up(self._random.choice(NAMES), transaction))
            else:
                ran.reads.append(self._query(transaction))

    def _look_up(self, name: str, transaction: bytes) -> tuple[Question, object]:
        found = self._engine.lookup(key_of(name), transaction=transaction).found
        answer = dict(_told(result.entity) for result in found)
        return (lambda state: {name: state[name]} if name in state else {}), answer

    def _query(self, transaction: bytes) -> tuple[Question, object]:
        least = self._random.randrange(10)
        filters: list[tuple[str, str, object]] = [("level", ">=", least)]
        group = self._random.choice(GROUPS)
        if not self._queries or self._random.random() < 0.5:
            filters.append(("__key__", "ancestor", key("G", group)))
        else:
            group = ""

        def question(state: State) -> object:
            return {
                name: written
                for name, written in state.items()
                if name.startswith(group) and written[0] >= least
            }

        batch = self._engine.run(query("K", where(*filters)), transaction=transaction)
        return question, dict(_told(result.entity) for result in batch.entity_results)

    def _write(self, ran: Ran, transaction: bytes) -> None:
        for name in self._random.sample(NAMES, self._random.randint(1, 2)):
            ran.writes[name] = (self._random.randrange(10), ran.name)
        name = self._random.choice(NAMES)
        if name not in ran.writes:
            ran.writes[name] = None
        mutations = [_mutation(name, written) for name, written in ran.writes.items()]
        response = self._engine.commit(*mutations, transaction=transaction, transactional=True)
        ran.version = response.mutation_results[0].version


def _told(message: Message) -> tuple[str, tuple[int, str]]:
    properties = message.properties
    name: str = message.key.path[-1].name
    return name, (properties["level"].integer_value, properties["writer"].string_value)


def _mutation(name: str, written: tuple[int, str] | None) -> Message:
    if written is None:
        return Mutation(delete=key_of(name))
    level, writer = written
    return Mutation(upsert=entity(key_of(name), level=level, writer=writer))


def run(control: ControlFactory, *, all_kinds_of_queries: bool = True) -> tuple[list[Ran], int]:
    """Return the committed transactions, and the number of aborts."""
    with subjects.subject(control) as engine:
        clients = [
            Client(engine, number, all_kinds_of_queries=all_kinds_of_queries)
            for number in range(CLIENTS)
        ]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    history = list(itertools.chain.from_iterable(client.history for client in clients))
    return history, sum(client.aborted for client in clients)


@pytest.mark.parametrize(
    ("control", "all_kinds_of_queries"),
    [(Optimistic, True), (Pessimistic, True), (OptimisticWithEntityGroups, False)],
)
def test_transactions_are_serializable(control: ControlFactory, all_kinds_of_queries: bool) -> None:
    history, aborted = run(control, all_kinds_of_queries=all_kinds_of_queries)
    assert aborted > 0, "there was no contention: the test shows nothing"
    assert len(history) + aborted == CLIENTS * TRANSACTIONS
    check(history)


def test_without_validation_they_are_not() -> None:
    """The negative control."""
    history, aborted = run(Unvalidated)
    assert aborted == 0
    with pytest.raises(NotSerializable, match="did not read what it was written on"):
        check(history)
