"""The memory of worker processes, and the criterion for a leak. Linux only.

A leak is memory that grows with the number of requests. A process also grows at its beginning: code
is loaded, caches fill up to their bounds, the allocator settles. So the first half of the run is
ignored. Through the second half a line is fitted: kilobytes of all workers over the number of
requests. Its slope is the growth per request.

Filling caches and the allocator account for up to 2,000 bytes of it in a run of 2,000 requests,
some 600 in one of 10,000, 260 in one of 20,000. (Of Python's own objects, 480 requests leave 166
bytes each, all of it in bounded caches.) `LEAK_BYTES` is above that, and below the memory of one
request: a page of the site is 4 to 8 kB. So code that keeps responses, entities or scopes is found
within a quarter of a minute. A smaller leak shows in the figure of a longer run.
"""

from __future__ import annotations

import re
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

#: A growth per request above this is a leak.
LEAK_BYTES = 4096.0
_SAMPLE_SECONDS = 0.25
_ANONYMOUS = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """The memory of all workers after a number of requests."""

    answers: int
    kilobytes: int


class Watch:
    """A sampler of the processes' memory during a `with` block.

    It reads `RssAnon`: the resident heap, without shared code and without files.
    """

    def __init__(self, pids: Sequence[int], answers: Callable[[], int]) -> None:
        self._pids = pids
        self._answers = answers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.samples: list[Sample] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_SAMPLE_SECONDS):
            self.samples.append(Sample(self._answers(), sum(map(_kilobytes, self._pids))))


def leak_bytes(samples: Sequence[Sample]) -> float:
    """Return the growth per request in bytes, from the second half of the run.

    Raises:
        ValueError: there are too few samples.
    """
    late = samples[len(samples) // 2 :]
    if len({sample.answers for sample in late}) < 5:
        raise ValueError(f"{len(samples)} samples are too few to detect a leak")
    slope, _ = statistics.linear_regression(
        [sample.answers for sample in late], [sample.kilobytes for sample in late]
    )
    return slope * 1024


def _kilobytes(pid: int) -> int:
    found = _ANONYMOUS.search(Path(f"/proc/{pid}/status").read_text())
    if found is None:
        raise ValueError(f"process {pid} has no RssAnon")
    return int(found[1])
