"""A deterministic cooperative scheduler: blocking code, run step by step.

Code under test sleeps and calls a store within its own loops. Each such call is a *point*: the
thread stops there and returns control, until it is resumed. So at any time exactly one thread runs,
and a test (or Hypothesis) chooses every interleaving.

    test                   thread of an actor
    run() ───────────────▶ goes on
                           …
          ◀─────────────── point("swap")
    (time passes, others run)
    run() ───────────────▶ goes on
          ◀─────────────── (has ended)

A killed actor never passes its present point. Code that still runs while it unwinds (`except`,
`finally`) meets `Killed` at the next point again, so that nothing reaches the outside, as after
SIGKILL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

#: Longer than any step takes. A step that takes so long is stuck.
_STUCK_SECONDS = 30.0


class Killed(BaseException):
    """The exception that unwinds the thread of a killed actor."""


class Actor:
    """One thread of a simulated process."""

    def __init__(
        self, scheduler: Scheduler, name: str, function: Callable[[], object], owner: object
    ) -> None:
        self.name = name
        self.owner = owner
        self.at = "its beginning"
        self.wake_at = 0.0
        self.finished = False
        self.killed = False
        self.result: object = None
        self._scheduler = scheduler
        self._function = function
        self._go = threading.Lock()
        self._go.acquire()
        self._back = threading.Lock()
        self._back.acquire()
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Run to the next point, or the end. An exception of the actor is raised here."""
        assert not self.finished, f"{self.name} has ended"
        before, self._scheduler.current = self._scheduler.current, self
        self._hand_over()
        self._scheduler.current = before
        if self._crash is not None:
            raise self._crash

    def kill(self) -> None:
        if not self.finished:
            self.killed = True
            self._hand_over()
            assert self.finished

    def _hand_over(self) -> None:
        self._go.release()
        if not self._back.acquire(timeout=_STUCK_SECONDS):
            raise AssertionError(f"{self.name} is stuck after {self.at}")
        if self.finished:
            self._thread.join()

    # --- in its own thread ------------------------------------------------------------------

    def stop_at(self, where: str, wake_at: float) -> None:
        """Return control to the scheduler; return when the actor is resumed."""
        if self.killed:
            raise Killed
        self.at, self.wake_at = where, wake_at
        self._back.release()
        self._go.acquire()
        self.wake_at = 0.0
        if self.killed:
            raise Killed

    def _main(self) -> None:
        self._go.acquire()
        try:
            if not self.killed:
                self.result = self._function()
        except Killed:
            pass
        except BaseException as crash:
            self._crash = None if self.killed else crash
        finally:
            self.finished = True
            self._back.release()

    def __repr__(self) -> str:
        return f"<{self.name} at {self.at}>"


class Scheduler:
    """The scheduler, which runs actors one at a time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.current: Actor | None = None
        self._actors: list[Actor] = []

    @property
    def actors(self) -> list[Actor]:
        self._actors = [actor for actor in self._actors if not actor.finished]
        return self._actors

    def spawn(self, name: str, function: Callable[[], object], owner: object = None) -> Actor:
        actor = Actor(self, name, function, owner)
        self._actors.append(actor)
        return actor

    def point(self, where: str, *, sleep_seconds: float = 0.0) -> None:
        """Stop at a point. Called by the interfaces that actors use."""
        actor = self.current
        assert actor is not None, "not in an actor"
        actor.stop_at(where, self.now() + sleep_seconds if sleep_seconds > 0 else 0.0)

    def close(self) -> None:
        for actor in list(self._actors):
            actor.kill()
        self._actors.clear()
