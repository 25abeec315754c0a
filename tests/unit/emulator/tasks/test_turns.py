"""Turns of the dispatcher that meet other requests, in an order that the test fixes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.unit.emulator.tasks.subject import LOCATION, QUEUE, SECOND
from userlock_emulator.tasks import protos
from userlock_emulator.tasks.clock import ManualClock
from userlock_emulator.tasks.dispatch import Dispatcher
from userlock_emulator.tasks.queues import Queues
from userlock_emulator.tasks.storage import Storage
from userlock_emulator.tasks.tables import Tables
from userlock_emulator.tasks.targets import Targets
from userlock_emulator.tasks.tasks import Tasks
from userlock_emulator.tasks.tokens import GOOGLE, Signer


class GatedStorage(Storage):
    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.arrived = threading.Event()
        super().__init__()

    @contextmanager
    def change(self) -> Iterator[Tables]:
        if threading.current_thread().name == "tasks-dispatch":
            if not self.open.is_set():
                self.arrived.set()
            assert self.open.wait(10)
        with super().change() as tables:
            yield tables


class Bench:
    """A dispatcher whose tasks have no target: it counts attempts, and calls nobody."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_700_000_000)
        self.storage = GatedStorage()
        targets = Targets(Signer(self.storage, GOOGLE), {})
        self.dispatcher = Dispatcher(
            self.storage, targets, self.clock, real_time=False, anywhere=False
        )
        self.clock.subscribe(self.dispatcher.look_again)
        self.queues = Queues(self.storage, self.clock, self.dispatcher.look_again)
        self.tasks = Tasks(self.storage, self.clock, self.dispatcher)
        queue = protos.Queue(name=QUEUE)
        self.queues.create(protos.CreateQueueRequest(parent=LOCATION, queue=queue))
        self.dispatcher.start()
        self.dispatcher.wait_idle(10)

    @contextmanager
    def turn_that_waits(self) -> Iterator[None]:
        """Let a turn wait for the storage during the block; afterwards, wait for it."""
        self.dispatcher.wait_idle(10)  # a turn that is past the gate would see what follows
        self.storage.open.clear()
        self.dispatcher.look_at(1)  # as for a task of the queue
        assert self.storage.arrived.wait(10)
        yield
        self.storage.open.set()
        self.dispatcher.wait_idle(10)

    def create(self, ahead: int = 0) -> str:
        at = protos.timestamp(self.clock() + ahead)
        task = protos.Task(app_engine_http_request={}, schedule_time=at)
        created = self.tasks.create(protos.CreateTaskRequest(parent=QUEUE, task=task))
        return str(created.name)

    def attempts(self, name: str) -> int:
        return int(self.tasks.get(protos.GetTaskRequest(name=name)).dispatch_count)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.dispatcher.stop()
    bench.storage.close()


def test_a_task_created_after_a_pause_is_not_sent(bench: Bench) -> None:
    with bench.turn_that_waits():
        bench.queues.pause(protos.PauseQueueRequest(name=QUEUE))
        name = bench.create()
    assert bench.attempts(name) == 0


def test_without_a_pause_it_is(bench: Bench) -> None:
    """The negative control."""
    with bench.turn_that_waits():
        name = bench.create()
    assert bench.attempts(name) == 1


def test_a_move_of_the_clock_is_not_missed(bench: Bench) -> None:
    name = bench.create(10 * SECOND)
    with bench.turn_that_waits():
        bench.clock.advance(10)
    assert bench.attempts(name) == 1


def test_a_resumed_queue_is_not_missed(bench: Bench) -> None:
    bench.queues.pause(protos.PauseQueueRequest(name=QUEUE))
    name = bench.create()
    with bench.turn_that_waits():
        bench.queues.resume(protos.ResumeQueueRequest(name=QUEUE))
    assert bench.attempts(name) == 1


def test_a_new_queue_and_its_task_are_not_missed(bench: Bench) -> None:
    other = f"{LOCATION}/queues/other"
    with bench.turn_that_waits():
        queue = protos.Queue(name=other)
        bench.queues.create(protos.CreateQueueRequest(parent=LOCATION, queue=queue))
        task = protos.Task(app_engine_http_request={})
        request = protos.CreateTaskRequest(parent=other, task=task)
        name = bench.tasks.create(request).name
    assert bench.attempts(name) == 1
