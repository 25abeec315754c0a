"""Wake one waiting thread.

A waiting thread sleeps until its bell rings or its time is over. Other threads
of the process ring it, and stores that can tell of a release.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Bell:
    """The bell of one waiting thread.

    Args:
        listen: waits for the bell in a way of the store's own: it may listen to the server
            meanwhile. Given the bell and the longest wait in seconds.

    Attributes:
        rung: whether there is news for the thread; it sets this back.
        woken: whether the news came from the store, so that the record has to be read.
        disturb: called when the bell rings, for a listener that sleeps elsewhere.
    """

    __slots__ = ("_event", "_listen", "disturb", "rung", "woken")

    def __init__(self, listen: Callable[[Bell, float], None] | None = None) -> None:
        self._event = threading.Event()
        self._listen = listen
        self.rung = False
        self.woken = False
        self.disturb: Callable[[], object] | None = None

    def ring(self, *, woken: bool = False) -> None:
        """Wake the thread, now or as soon as it waits."""
        self.woken = self.woken or woken
        self.rung = True
        self.stir()

    def stir(self) -> None:
        """Let the thread look around, without news."""
        self._event.set()
        disturb = self.disturb
        if disturb is not None:
            disturb()

    def wait(self, seconds: float) -> None:
        """Wait until the bell rings, or for that long."""
        if self.rung:
            return
        if self._listen is None:
            self.sleep(seconds)
        else:
            self._listen(self, seconds)

    def sleep(self, seconds: float) -> None:
        """Wait until it rings or somebody stirs the thread, or for that long."""
        if self._event.wait(seconds):
            self._event.clear()

    def answer(self) -> bool:
        """Set the bell back; return whether the store has woken the thread."""
        woken, self.woken, self.rung = self.woken, False, False
        return woken
