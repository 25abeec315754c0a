"""Which answers are as they should be; how many of each, and how fast."""

from __future__ import annotations

import statistics
import threading
from collections import Counter, defaultdict

from tools.load.browser import Answer

#: What contention is answered with: to programs by its name, to people in words. The same statuses
#: with other words, as of a database that does not answer, are not meant to come.
_CONTENTION = {
    503: ('"error": "LockTimeout"', "Somebody else is changing this learner right now."),
    409: ('"error": "StaleWriteError"', "the learner was changed by another request."),
}


def intended(answer: Answer) -> bool:
    """Done, led on, or sent away because of contention."""
    if answer.status in _CONTENTION:
        return any(words in answer.text for words in _CONTENTION[answer.status])
    return answer.status in {200, 201, 303}


class Answers:
    """All that came back. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._statuses: Counter[tuple[str, int]] = Counter()
        self.unintended: list[Answer] = []

    def add(self, *answers: Answer) -> None:
        """These came."""
        with self._mutex:
            for answer in answers:
                self._seconds[answer.what].append(answer.seconds)
                self._statuses[answer.what, answer.status] += 1
                if not intended(answer):
                    self.unintended.append(answer)

    @property
    def count(self) -> int:
        """How many there are so far."""
        return self._statuses.total()

    def table(self) -> list[dict[str, object]]:
        """For each request: how often, how fast (milliseconds), with which statuses."""
        with self._mutex:
            return [
                {
                    "what": what,
                    "count": len(seconds),
                    "p50_ms": round(statistics.median(seconds) * 1000, 1),
                    "longest_ms": round(max(seconds) * 1000, 1),
                    "statuses": {
                        status: count
                        for (of, status), count in sorted(self._statuses.items())
                        if of == what
                    },
                }
                for what, seconds in sorted(self._seconds.items())
            ]
