"""Faults that are planted on demand, whatever they do: which events meet them, and how many.

Each event meets at most one fault: the oldest one that matches it. A fault is used up after `count`
events. Without faults nothing is searched.
"""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The events that meet a fault. What the fault does to them is up to the derived class.

    Attributes:
        name: name of the kind of fault.
        count: number of events that meet the fault; None: all, until it is removed.
        skip: number of matching events that pass first.
    """

    name: str
    count: int | None = 1
    skip: int = 0

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ValueError(f"the count must be at least 1, not {self.count}")
        if self.skip < 0:
            raise ValueError(f"no requests can be skipped {self.skip} times")

    def matches(self, what: str, about: Any) -> bool:
        """Return whether the fault applies to this event."""
        raise NotImplementedError

    def over(self) -> bool:
        """Return whether the fault has ended, by itself."""
        return False

    def described(self) -> dict[str, Any]:
        """Return the rule for a JSON document."""
        raise NotImplementedError


R = TypeVar("R", bound=Rule)


class Fault(Generic[R]):
    """An active fault. As a context manager it is removed at the block's end.

    Attributes:
        id: a number, never used twice.
        rule: the events that meet it, and its effect.
    """

    def __init__(self, number: int, rule: R, planting: "Planting[R]") -> None:
        self.id = number
        self.rule = rule
        self._planting = planting
        self._skip = rule.skip
        self._hits = 0
        self._inside = 0
        self._removed = threading.Event()

    @property
    def hits(self) -> int:
        """Return the number of events that have met the fault."""
        return self._hits

    def wait(self, hits: int = 1, timeout_seconds: float = 10.0) -> None:
        """Wait until that many events have met the fault.

        Raises:
            TimeoutError: fewer events have met it.
        """
        changed = self._planting.changed
        with changed:
            if not changed.wait_for(lambda: self._hits >= hits, timeout_seconds):
                raise TimeoutError(f"the fault {self.rule} was met {self._hits} of {hits} times")

    def remove(self) -> None:
        """Remove the fault. Requests that it is delaying continue at once."""
        self._removed.set()
        self._planting.tidy()

    def wait_for_removal(self, seconds: float | None) -> None:
        """Wait until the fault is removed, but not longer than that time."""
        self._removed.wait(seconds)

    def described(self) -> dict[str, Any]:
        """Return the fault for a JSON document."""
        return {
            "id": self.id,
            "fault": self.rule.name,
            **self.rule.described(),
            "count": self.rule.count,
            "skip": self.rule.skip,
            "hits": self.hits,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    @property
    def _spent(self) -> bool:
        return self._removed.is_set() or self._hits == self.rule.count or self.rule.over()

    @property
    def _over(self) -> bool:
        return self._removed.is_set() or (self._spent and not self._inside)

    def _meets(self, what: str, about: Any) -> bool:
        if self._spent or not self.rule.matches(what, about):
            return False
        if self._skip:
            self._skip -= 1
            return False
        self._hits += 1
        self._inside += 1
        return True


class Planting(Generic[R]):
    """The faults of one server. Thread-safe.

    Args:
        on_change: called after a fault was added or has ended.

    Attributes:
        changed: notified when an event has met a fault.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.changed = threading.Condition()
        self._on_change = on_change
        self._numbers = itertools.count(1)
        self._planted: tuple[Fault[R], ...] = ()

    def plant(self, rule: R) -> Fault[R]:
        """Add a fault with any rule."""
        with self.changed:
            fault = Fault(next(self._numbers), rule, self)
            self._planted = (*self._planted, fault)
        self._on_change()
        return fault

    @property
    def planted(self) -> tuple[Fault[R], ...]:
        """Return the active faults, oldest first."""
        if any(fault._over for fault in self._planted):
            self.tidy()
        return self._planted

    def clear(self) -> None:
        """Remove all faults. Requests that are being delayed continue at once."""
        for fault in self._planted:
            fault.remove()

    def meet(self, what: str, about: Any) -> Fault[R] | None:
        """Return the fault that an event meets, if any. Call `leave` when its effect is over."""
        if not self._planted:
            return None
        with self.changed:
            met = next((fault for fault in self._planted if fault._meets(what, about)), None)
            self.changed.notify_all()
        return met

    def leave(self, fault: Fault[R]) -> None:
        """End the effect of a fault on one event."""
        with self.changed:
            fault._inside -= 1
        self.tidy()

    def tidy(self) -> None:
        """Forget the faults that are over."""
        with self.changed:
            before = self._planted
            self._planted = tuple(fault for fault in before if not fault._over)
        if self._planted != before:
            self._on_change()
