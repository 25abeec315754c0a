"""Dispatch: one thread that sends the tasks that are due, within the limits of their queues.

    RPC ── change committed ── wake ──▶ turn: ends of attempts are recorded,
    clock ────────────────────▶         tasks that are due begin an attempt (one commit),
    target ── answer ─────────▶         then the requests are sent

An attempt is counted before its request is sent. A process that is killed in between has counted
an attempt that was never sent, and dispatches the task again: at least once.
"""

import asyncio
import logging
import selectors
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from userlock_emulator.port.status import Code
from userlock_emulator.tasks import attempts
from userlock_emulator.tasks.attempts import Answer, Attempt
from userlock_emulator.tasks.clock import NEVER
from userlock_emulator.tasks.faults import DELIVERY, WAITING, Faults
from userlock_emulator.tasks.lanes import Lane
from userlock_emulator.tasks.protos import Queue
from userlock_emulator.tasks.sending import most_in_flight, send
from userlock_emulator.tasks.storage import Storage
from userlock_emulator.tasks.tables import Tables, TaskRow
from userlock_emulator.tasks.targets import TargetError, Targets

# The most attempts that begin in one turn, so that other requests get in between.
_MOST_AT_ONCE = 100
# The wall clock may be set; so the next look is never further away.
_LONGEST_SLEEP_SECONDS = 1.0
_PRUNE_EVERY = 60 * 1_000_000

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Flight:
    """An attempt in flight."""

    attempt: Attempt
    lane: Lane | None
    task: "asyncio.Task[None] | None" = None
    overdue: bool = False


class Dispatcher:
    """The thread that dispatches the tasks of a storage.

    It dispatches from `start` to `stop`.

    Args:
        now: the clock, in microseconds.
        real_time: the clock moves by itself.
        anywhere: call targets on other machines too.
    """

    def __init__(
        self,
        storage: Storage,
        targets: Targets,
        now: Callable[[], int],
        *,
        real_time: bool,
        anywhere: bool,
    ) -> None:
        self._storage = storage
        self._targets = targets
        self._now = now
        self._real_time = real_time
        self._anywhere = anywhere
        self.faults = Faults(now, self.look_again)
        self._lanes: dict[int, Lane] = {}
        self._flights: set[_Flight] = set()
        self._ended: list[tuple[_Flight, Answer]] = []
        self._most = most_in_flight()
        self._next_prune = 0
        self._next_time = NEVER
        # What other threads ask for: `_asked` counts it, `_done` is the last that a turn saw.
        self._turned = threading.Condition()
        self._asked = 0
        self._done = -1
        self._changed_queues = True
        self._changed_tasks: set[int] = set()
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        # A forked process shares a kernel's selector, as epoll, and could change it.
        self._loop = asyncio.SelectorEventLoop(selectors.PollSelector())
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tasks-dispatch", daemon=True
        )

    # --- called by any thread ---------------------------------------------------------------------

    def start(self) -> None:
        """Begin to dispatch."""
        self._thread.start()
        self._ask()

    def look_again(self) -> None:
        """Look at all queues again: the clock, a queue or a fault has changed."""
        self._ask(all_queues=True)

    def look_at(self, queue: int) -> None:
        """Look at the tasks of a queue again, by the number of its row."""
        self._ask(queue)

    def send_now(self, attempt: Attempt) -> None:
        """Send the request of an attempt that has begun (RunTask)."""
        self._call(lambda: self._launch(_Flight(attempt, None)))

    def drop_all(self) -> None:
        """End all attempts in flight without a trace: their tasks have been deleted."""
        self._call(self._cancel_all)
        self.look_again()
        self.wait_idle(10)

    @property
    def in_flight(self) -> int:
        """Return the number of attempts in flight."""
        return len(self._flights)

    @property
    def next_time(self) -> int | None:
        """Return the time at which something happens next, if nothing changes; None for never."""
        self._settle(10, lambda: True)
        return None if self._next_time >= NEVER else self._next_time

    def wait_idle(self, timeout_seconds: float) -> None:
        """Wait until no attempt is in flight, and none can begin at this time of the clock.

        Raises:
            TimeoutError: it took longer.
        """
        self._settle(timeout_seconds, self._is_idle)

    def wait_until(self, timeout_seconds: float, true: Callable[[], bool]) -> None:
        """Wait until a condition on the stored tasks is true.

        Raises:
            TimeoutError: it took longer.
        """
        self._settle(timeout_seconds, true)

    def _is_idle(self) -> bool:
        with self._turned:
            return self._done == self._asked and not self._flights and not self._ended

    def _settle(self, timeout_seconds: float, true: Callable[[], bool]) -> None:
        self._ask()
        with self._turned:
            wanted = self._asked
            end = time.monotonic() + timeout_seconds
            # The stored state is read outside the lock, which the dispatching thread needs.
            while True:
                turn = self._done
                self._turned.release()
                try:
                    if turn >= wanted and true():
                        return
                finally:
                    self._turned.acquire()
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"{len(self._flights)} attempts are in flight")
                if turn == self._done:
                    self._turned.wait(left)

    def stop(self) -> None:
        """End the thread. Attempts in flight are cut off; they are repeated after a restart."""
        self._stopping = True
        if self._thread.is_alive():
            self._call(self._cancel_all)
            self._call(self._loop.stop)
            self._thread.join()
            # The cancelled attempts close their connections.
            pending = asyncio.all_tasks(self._loop)
            if pending:
                self._loop.run_until_complete(asyncio.wait(pending))
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _ask(self, *queues: int, all_queues: bool = False) -> None:
        """Let a turn follow. It sees all that has been committed before."""
        with self._turned:
            self._asked += 1
            self._changed_tasks.update(queues)
            self._changed_queues = self._changed_queues or all_queues
        self._call(self._turn)

    def _call(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            _log.debug("the dispatcher has stopped")

    # --- in the thread of the loop ----------------------------------------------------------------

    def _turn(self) -> None:
        with self._turned:
            if self._stopping or (self._asked == self._done and not self._ended):
                return  # an earlier turn has seen it all
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ended, self._ended = self._ended, []
        begun: list[_Flight] = []
        try:
            with self._storage.change() as tables:
                # Inside: a turn that sees a task also sees the pause, or the time, before it.
                #
                #     turn        waits for the storage ·············· takes changes, sees the task
                #     PauseQueue  commits, asks, returns
                #     CreateTask                          commits
                asked, changed_queues, changed_tasks = self._take_changes()
                now = self._now()
                if changed_queues:
                    self._load_lanes(tables, now)
                for number in changed_tasks & self._lanes.keys():
                    self._lanes[number].next_due = 0
                for flight, answer in ended:
                    self._finish(tables, flight, answer, now)
                self._prune(tables, now)
                more = self._begin(tables, now, begun)
        except Exception:
            # A full disk, for instance. Nothing of this turn is stored, so another one repeats it.
            _log.exception("a turn of the dispatcher failed")
            self._ended = ended + self._ended
            with self._turned:
                self._changed_queues = True
            for flight in begun:
                self._discard(flight)
            self._timer = self._loop.call_later(_LONGEST_SLEEP_SECONDS, self._ask)
            return
        for flight in begun:
            self._launch(flight)
        now = self._now()
        self._cut_off(now)
        self._plan(now)
        with self._turned:
            self._done = asked
            self._turned.notify_all()
        if more:
            self._ask()

    def _take_changes(self) -> tuple[int, bool, set[int]]:
        with self._turned:
            changed_queues, self._changed_queues = self._changed_queues, False
            changed_tasks, self._changed_tasks = self._changed_tasks, set()
            return self._asked, changed_queues, changed_tasks

    def _load_lanes(self, tables: Tables, now: int) -> None:
        lanes: dict[int, Lane] = {}
        for number, _, data in tables.queues():
            queue = Queue.FromString(data)
            lane = self._lanes.get(number)
            if lane is None:
                lane = Lane(number, queue, now)
            else:
                lane.change(queue, now)
            lanes[number] = lane
        self._lanes = lanes

    def _finish(self, tables: Tables, flight: _Flight, answer: Answer, now: int) -> None:
        attempt = flight.attempt
        if attempt.lost:
            answer = Answer(text="no response: the answer was lost, by a fault")
        attempts.finish(tables, attempt, answer, now)
        lane = self._lanes.get(attempt.queue)
        if lane is not None:
            lane.note(answer, attempt.for_app_engine, now)
            lane.next_due = 0

    def _prune(self, tables: Tables, now: int) -> None:
        if now < self._next_prune:
            return
        self._next_prune = now + _PRUNE_EVERY
        tables.prune(now)
        for number in tables.old_tasks(now - attempts.RETENTION):
            tables.delete_task(number)

    def _begin(self, tables: Tables, now: int, begun: list[_Flight]) -> bool:
        """Begin attempts. Return whether there may be more to begin."""
        lanes = list(self._lanes.values())
        while lanes and len(begun) < _MOST_AT_ONCE:
            # One of each queue, then the next of each.
            lanes = [lane for lane in lanes if self._begin_one(tables, lane, now, begun)]
        return bool(lanes)

    def _begin_one(self, tables: Tables, lane: Lane, now: int, begun: list[_Flight]) -> bool:
        """Begin an attempt of a queue, or two. Return whether it may have another one."""
        if not lane.open(self._most - len(self._flights)):
            return False
        if lane.next_due > now and not self.faults.planted:
            return False
        row = tables.next_task(lane.number)
        lane.next_due = NEVER if row is None else row.due
        if row is None or lane.ready(now) > now:
            return False
        name = lane.queue.name
        early = row.due > now
        if early and (row.due >= NEVER or self.faults.delivery(WAITING, name) is None):
            return False
        lane.take(now)
        lane.next_due = 0
        fault = None if early or row.delayed else self.faults.delivery(DELIVERY, name)
        kind = "" if fault is None else fault.rule.name
        if fault is not None and kind in ("late", "never"):
            seconds = fault.rule.seconds
            row.due = NEVER if seconds is None else now + int(seconds * 1_000_000)
            row.delayed = 1
            tables.update_task(row)
            return True
        for _ in range(2 if kind == "duplicate" else 1):
            self._begin_attempt(tables, lane, row, now, begun, lost=kind == "lose_answer")
        return True

    def _begin_attempt(
        self,
        tables: Tables,
        lane: Lane,
        row: TaskRow,
        now: int,
        begun: list[_Flight],
        *,
        lost: bool,
    ) -> None:
        attempt = attempts.begin(tables, lane.queue, row, now, lost=lost)
        flight = _Flight(attempt, lane)
        lane.running += 1
        self._flights.add(flight)
        begun.append(flight)

    def _launch(self, flight: _Flight) -> None:
        self._flights.add(flight)
        flight.task = self._loop.create_task(self._send(flight))
        # Here, for a task that is cancelled before it has begun.
        flight.task.add_done_callback(lambda _: self._landed(flight))

    async def _send(self, flight: _Flight) -> None:
        try:
            outgoing = self._targets.outgoing(flight.attempt)
            answer = await send(outgoing, anywhere=self._anywhere)
        except TargetError as error:
            answer = Answer(code=Code.INVALID_ARGUMENT, text=str(error))
        except asyncio.CancelledError:
            if not flight.overdue:
                raise
            answer = Answer(code=Code.DEADLINE_EXCEEDED, text="no response before the deadline")
        except Exception as error:
            _log.exception("an attempt failed")
            answer = Answer(code=Code.INTERNAL, text=f"The emulator failed: {error!r}")
        if answer.status is None:
            _log.warning("%s: %s", flight.attempt.task.name, answer.text)
        self._ended.append((flight, answer))

    def _landed(self, flight: _Flight) -> None:
        self._discard(flight)
        self._ask()

    def _discard(self, flight: _Flight) -> None:
        self._flights.discard(flight)
        if flight.lane is not None:
            flight.lane.running -= 1

    def _cut_off(self, now: int) -> None:
        """End the attempts whose deadline has passed."""
        for flight in self._flights:
            if flight.attempt.deadline <= now and flight.task is not None and not flight.overdue:
                flight.overdue = True
                flight.task.cancel()

    def _cancel_all(self) -> None:
        self._ended.clear()
        for flight in self._flights:
            if flight.task is not None:
                flight.task.cancel()

    def _plan(self, now: int) -> None:
        """Set the timer for the next event."""
        free = self._most - len(self._flights)
        times = [lane.next_time(now, free) for lane in self._lanes.values()]
        times += [each.attempt.deadline for each in self._flights if not each.overdue]
        self._next_time = min(times, default=NEVER)
        if self._real_time and self._next_time < NEVER:
            seconds = (self._next_time - now) / 1_000_000
            self._timer = self._loop.call_later(
                min(max(seconds, 0.0), _LONGEST_SLEEP_SECONDS), self._ask
            )
