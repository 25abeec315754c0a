"""Break one promise of wake-ups in each store, as negative controls of the contract suite."""

from __future__ import annotations

from userlock.bell import Bell
from userlock.lock.record import Record
from userlock.lock.store import Stored, WakeUps
from userlock.stores import MemoryStore


class _Known(WakeUps):
    """The bells of all waiters, in the order of their coming."""

    def __init__(self) -> None:
        super().__init__()
        self.bells: dict[str, Bell] = {}

    def begin(self, token: str, bell: Bell) -> None:
        self.bells[token] = bell

    def end(self, token: str) -> None:
        self.bells.pop(token, None)


class _Wakes(MemoryStore):
    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.known = _Known()
        self.wake_ups = self.known

    def append_and_wake(self, lock_id: str, line: bytes) -> Stored | None:
        stored = self.append(lock_id, line)
        if stored is not None:
            for token in self.chosen(Record(stored)):
                if token in self.known.bells:
                    self.known.woken(self.known.bells[token])
        return stored

    def chosen(self, record: Record) -> list[str]:
        """Return the tokens of the waiters to wake."""
        return [waiter.token for waiter in record.waiters()][:1]


class WakesNobody(_Wakes):
    def chosen(self, record: Record) -> list[str]:
        return []


class WakesTheLast(_Wakes):
    def chosen(self, record: Record) -> list[str]:
        return [waiter.token for waiter in record.waiters()][-1:]


class WakesAll(_Wakes):
    def chosen(self, record: Record) -> list[str]:
        return [waiter.token for waiter in record.waiters()]


class GoesByArrival(_Wakes):
    def chosen(self, record: Record) -> list[str]:
        waiting = {waiter.token for waiter in record.waiters()}
        return [token for token in self.known.bells if token in waiting][:1]


class KnowsNoAge(_Wakes):
    def chosen(self, record: Record) -> list[str]:
        waiters = sorted(record.waiters(), key=lambda waiter: waiter.priority != "interactive")
        return [waiter.token for waiter in waiters][:1]


class WakesThoseWhoLeft(_Wakes):
    def chosen(self, record: Record) -> list[str]:
        return list(self.known.bells)[:1]


class ForgetsNobody(_Wakes):
    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.known.end = lambda token: None  # type: ignore[method-assign]
        self._gone = False

    def chosen(self, record: Record) -> list[str]:
        return list(self.known.bells)


class WakesAtOnce(_Wakes):
    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.known.begin = lambda token, bell: bell.ring(woken=True)  # type: ignore[method-assign]
