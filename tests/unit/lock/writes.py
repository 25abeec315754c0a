"""A participant of scopes, as the model layer is one."""

from __future__ import annotations

from collections.abc import Callable, Collection

from userlock import HeldLock


class Writes:
    """A participant of scopes that logs the locks that are left, and what `at_the_end` returned."""

    def __init__(self, at_the_end: Callable[[HeldLock], object] = lambda tenure: None) -> None:
        self.keeps: Collection[str] = ()
        self.log: list[tuple[HeldLock, object]] = []
        self.at_the_end = at_the_end

    def leaving(self, tenure: HeldLock, *, failing: bool) -> None:
        self.log.append((tenure, self.at_the_end(tenure)))

    def finish_own(self, tenure: HeldLock) -> None:
        pass

    def holds(self, tenure: HeldLock) -> bool:
        return tenure.lock_id in self.keeps

    def postpone(self, tenure: HeldLock, release: Callable[[], None]) -> None:
        release()
