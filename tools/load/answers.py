"""The intended responses; number and speed of each."""

from __future__ import annotations

import statistics
import threading
from collections import Counter, defaultdict

from tools.load.browser import Answer

#: The responses to contention: an error name for programs, text for browsers. The same statuses
#: with other texts, for example about a database outage, are not intended.
_CONTENTION = {
    503: ('"error": "LockTimeout"', "Another request is changing this learner right now."),
    409: ('"error": "StaleWriteError"', "the learner was changed by another request."),
}


def intended(answer: Answer) -> bool:
    """Return whether the request succeeded, was redirected, or was refused under contention."""
    if answer.status in _CONTENTION:
        return any(words in answer.text for words in _CONTENTION[answer.status])
    return answer.status in {200, 201, 202, 303}


class Answers:
    """All responses. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._statuses: Counter[tuple[str, int]] = Counter()
        self.unintended: list[Answer] = []

    def add(self, *answers: Answer) -> None:
        """Add responses."""
        with self._mutex:
            for answer in answers:
                self._seconds[answer.what].append(answer.seconds)
                self._statuses[answer.what, answer.status] += 1
                if not intended(answer):
                    self.unintended.append(answer)

    @property
    def count(self) -> int:
        """Return the number of responses so far."""
        return self._statuses.total()

    def table(self) -> list[dict[str, object]]:
        """Return for each request the count, times (milliseconds) and statuses."""
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
