"""Deliveries and RPCs that go wrong on demand.

    with tasks.start() as cloud_tasks:
        cloud_tasks.faults.duplicate(2, queue="receipts")  # the next two deliveries come twice
        cloud_tasks.faults.late(30)                        # the next one comes 30 s late
        cloud_tasks.faults.drop_reply()                    # the next task is created; no reply
        cloud_tasks.faults.outage(60)                      # no RPC works for a minute

A queue is given by its id or by its full name. An RPC, a delivery or a waiting task meets at most
one fault: the oldest one that matches it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from userlock_emulator.port import planting
from userlock_emulator.port.rpcs import Message, Run
from userlock_emulator.port.status import Code, RpcError
from userlock_emulator.tasks.names import last_part

RPCS = (
    "ListQueues", "GetQueue", "CreateQueue", "UpdateQueue", "DeleteQueue", "PurgeQueue",
    "PauseQueue", "ResumeQueue", "ListTasks", "GetTask", "CreateTask", "DeleteTask", "RunTask",
    "BatchCreateTasks", "BatchDeleteTasks", "GetOperation",
)  # fmt: skip

#: Events beside the RPCs: an attempt that is about to begin, and a task that is not due yet.
DELIVERY: Final = "delivery"
WAITING: Final = "waiting"

_MAX_SECONDS = 100 * 365 * 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Rule(planting.Rule):
    """The events that meet a fault, and the fault's effect on them.

    Attributes:
        event: `DELIVERY`, `WAITING`, or the name of an RPC; None: any RPC.
        queue: only events of this queue, by its id or full name; None: of any.
        seconds: length of the delay of a delivery, or of the outage of RPCs.
        ended: returns whether the fault has ended by time.
    """

    event: str | None = None
    queue: str | None = None
    seconds: float | None = None
    ended: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        if self.event is not None and self.event not in (DELIVERY, WAITING, *RPCS):
            raise ValueError(f"there is no RPC {self.event!r}; there are: {', '.join(RPCS)}")
        super().__post_init__()
        if self.seconds is not None and not 0 <= self.seconds <= _MAX_SECONDS:
            raise ValueError(f"the seconds cannot be {self.seconds}")

    def matches(self, what: str, about: str) -> bool:
        """Return whether the fault applies to an event of a queue."""
        if self.event is None and what in (DELIVERY, WAITING):
            return False
        if self.event is not None and self.event != what:
            return False
        return self.queue is None or self.queue in (about, last_part(about))

    def over(self) -> bool:
        """Return whether the fault has ended, by time."""
        return self.ended()

    def described(self) -> dict[str, Any]:
        """Return the rule for a JSON document."""
        return {
            "rpc": self.event if self.event in RPCS else None,
            "queue": self.queue,
            "seconds": self.seconds,
        }


Fault = planting.Fault[Rule]


class Faults(planting.Planting[Rule]):
    """The faults of one emulator. Thread-safe.

    The methods that add a fault take the `count` of events that meet it (None: all, until it is
    removed), and

        queue: only events of this queue, by its id or full name; None: of any queue.
        skip: number of matching events that pass first.

    and raise ValueError for impossible arguments.

    Args:
        now: the emulator's clock, in microseconds.
        on_change: called after a fault was added or has ended.
    """

    def __init__(self, now: Callable[[], int], on_change: Callable[[], None]) -> None:
        super().__init__(on_change)
        self._now = now

    # --- deliveries -------------------------------------------------------------------------------

    def duplicate(self, count: int | None = 1, *, queue: str | None = None, skip: int = 0) -> Fault:
        """Deliver tasks twice, at the same time."""
        return self._deliveries("duplicate", count, queue, skip)

    def lose_answer(
        self, count: int | None = 1, *, queue: str | None = None, skip: int = 0
    ) -> Fault:
        """Deliver tasks, but lose the target's answer: the task is retried even after a success."""
        return self._deliveries("lose_answer", count, queue, skip)

    def late(
        self,
        seconds: float,
        count: int | None = 1,
        *,
        queue: str | None = None,
        skip: int = 0,
    ) -> Fault:
        """Deliver tasks that much later than they are due."""
        return self._deliveries("late", count, queue, skip, seconds)

    def never(self, count: int | None = 1, *, queue: str | None = None, skip: int = 0) -> Fault:
        """Deliver tasks never. They stay in the queue; RunTask still runs them."""
        return self._deliveries("never", count, queue, skip)

    def early(self, count: int | None = 1, *, queue: str | None = None, skip: int = 0) -> Fault:
        """Deliver tasks that wait for their time now: the ones that are due first."""
        return self.plant(Rule(name="early", event=WAITING, queue=queue, count=count, skip=skip))

    def _deliveries(
        self,
        name: str,
        count: int | None,
        queue: str | None,
        skip: int,
        seconds: float | None = None,
    ) -> Fault:
        rule = Rule(name=name, event=DELIVERY, queue=queue, count=count, skip=skip, seconds=seconds)
        return self.plant(rule)

    # --- RPCs -------------------------------------------------------------------------------------

    def unavailable(
        self,
        count: int | None = 1,
        *,
        rpc: str | None = None,
        queue: str | None = None,
        skip: int = 0,
    ) -> Fault:
        """Fail RPCs with UNAVAILABLE, as if they had never arrived.

        Args:
            rpc: only this RPC, named as in the proto ("CreateTask"); None: any.
        """
        rule = Rule(name="unavailable", event=rpc, queue=queue, count=count, skip=skip)
        return self.plant(rule)

    def outage(self, seconds: float, *, rpc: str | None = None, queue: str | None = None) -> Fault:
        """Fail all RPCs with UNAVAILABLE, for a time by the emulator's clock."""
        started = self._now()
        rule = Rule(
            name="outage",
            event=rpc,
            queue=queue,
            count=None,
            seconds=seconds,
            ended=lambda: self._now() >= started + seconds * 1e6,
        )
        return self.plant(rule)

    def drop_reply(
        self,
        count: int | None = 1,
        *,
        rpc: str | None = "CreateTask",
        queue: str | None = None,
        skip: int = 0,
    ) -> Fault:
        """Execute RPCs, but end them as a broken connection (UNAVAILABLE)."""
        rule = Rule(name="drop_reply", event=rpc, queue=queue, count=count, skip=skip)
        return self.plant(rule)

    def around(self, rpc: str, run: Run) -> Run:
        """Return `run`, an RPC of that name, wrapped with the faults for it."""

        def run_or_fail(request: Message) -> Message:
            fault = self.meet(rpc, _queue_in(request)) if self.planted else None
            if fault is None:
                return run(request)
            try:
                if fault.rule.name == "drop_reply":
                    run(request)
                    raise RpcError(Code.UNAVAILABLE, "Socket closed")
                raise RpcError(Code.UNAVAILABLE, "The service is currently unavailable.")
            finally:
                self.leave(fault)

        return run_or_fail

    def delivery(self, event: str, queue: str) -> Fault | None:
        """Return the fault that a delivery or a waiting task meets, if any."""
        fault = self.meet(event, queue)
        if fault is not None:
            self.leave(fault)
        return fault


def _queue_in(request: Message) -> str:
    """Return the name of the queue that a request is about, or a location, or nothing."""
    fields = request.DESCRIPTOR.fields_by_name
    if "queue" in fields:
        name = request.queue.name
    else:
        name = request.parent if "parent" in fields else request.name
    return str(name).partition("/tasks/")[0]
