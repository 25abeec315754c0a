"""The rate and the concurrency of one queue: the time of its next dispatch."""

from userlock_emulator.tasks.attempts import Answer
from userlock_emulator.tasks.clock import NEVER
from userlock_emulator.tasks.protos import Message, Queue
from userlock_emulator.tasks.schedule import Throttle, TokenBucket


class Lane:
    """The way out of a queue.

    Attributes:
        number: number of the queue's row.
        queue: the Queue message.
        running: number of attempts in flight, without those of RunTask.
        next_due: the time at which the next task is due, as far as known; 0: to be looked up.
    """

    def __init__(self, number: int, queue: Message, now: int) -> None:
        self.number = number
        self.queue = queue
        self.running = 0
        self.next_due = 0
        self._throttle = Throttle()
        limits = queue.rate_limits
        self._bucket = TokenBucket(limits.max_dispatches_per_second, limits.max_burst_size, now)

    def change(self, queue: Message, now: int) -> None:
        """Go on with other settings."""
        self.queue = queue
        self.next_due = 0
        self._set_rate(now)

    def _set_rate(self, now: int) -> None:
        limits = self.queue.rate_limits
        rate = limits.max_dispatches_per_second * self._throttle.factor
        self._bucket.change(rate, limits.max_burst_size, now)

    def open(self, free: int) -> bool:
        """Return whether the queue runs and may have another attempt in flight.

        A queue takes no more than what it leaves free to the others. So a queue whose target never
        answers cannot stop them.

        Args:
            free: number of further attempts that the whole emulator may have in flight.
        """
        return (
            self.queue.state == Queue.RUNNING
            and self.running < free
            and self.running < self.queue.rate_limits.max_concurrent_dispatches
        )

    def ready(self, now: int) -> int:
        """Return the time from which the rate allows another dispatch."""
        return self._bucket.ready(now)

    def take(self, now: int) -> bool:
        """Take a token for a dispatch, if there is one."""
        return self._bucket.take(now)

    def next_time(self, now: int, free: int) -> int:
        """Return the time of the next dispatch, if nothing changes; `NEVER` for none."""
        if not self.open(free) or self.next_due >= NEVER:
            return NEVER
        return max(self.next_due, self.ready(now))

    def note(self, answer: Answer, app_engine: bool, now: int) -> None:
        """Note an answer of the target: it may slow the queue down.

        From an App Engine service, only 503 does so.
        """
        if answer.status == 503 or (answer.status == 429 and not app_engine):
            self._throttle.slow_down()
            self._set_rate(now)
            self._bucket.drain(now)
        elif answer.success:
            self._throttle.speed_up()
            self._set_rate(now)
