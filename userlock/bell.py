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
        woken: whether the news came from the store.
        news: what the store said, if it did; otherwise the record has to be read.
        disturb: called when the bell rings, for a listener that sleeps elsewhere.
    """

    __slots__ = ("_event", "_listen", "disturb", "news", "rung", "woken")

    def __init__(self, listen: Callable[[Bell, float], None] | None = None) -> None:
        self._event = threading.Event()
        self._listen = listen
        self.rung = False
        self.woken = False
        self.news: object = None
        self.disturb: Callable[[], object] | None = None

    def ring(self, *, woken: bool = False, news: object = None) -> None:
        """Wake the thread, now or as soon as it waits."""
        if woken:
            self.news, self.woken = news, True
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

    def answer(self) -> tuple[bool, object]:
        """Set the bell back; return whether the store has woken the thread, and its news."""
        woken, news = self.woken, self.news
        self.woken, self.rung, self.news = False, False, None
        return woken, news
