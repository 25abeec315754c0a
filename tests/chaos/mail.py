"""An engine of the outbox that keeps few promises.

It loses, repeats, delays and reorders messages, delivers before their time, and fails with and
without having taken them. A message is an empty file, whose name has its time and the job's key.
All processes share the folder. A worker removes the file before it runs the job: killed, it has
lost the message.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from userlock.clock import SYSTEM_CLOCK
from userlock.outbox import EngineError, Wake

_REFUSED, _SLOW, _IN_DOUBT = 0.03, 0.02, 0.02
_LOST, _TWICE, _LATE, _EARLY = 0.2, 0.15, 0.1, 0.3
_LATE_SECONDS = 3.0


class Mailbox:
    """An engine; see the module. Thread-safe.

    Args:
        folder: the messages of all processes.
        random: the source of faults; None: there are none, and `take` takes messages early.
    """

    def __init__(self, folder: Path, random: Random | None) -> None:
        self._folder = folder
        self._random = random
        folder.mkdir(exist_ok=True)

    def connect(self, deliver: Callable[[str], object]) -> None:
        """Do nothing: a worker takes the messages."""

    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        random = self._random
        if random is None:
            for each in messages:
                self._post(each.key, 0.0)
            return [None] * len(messages)
        chance = random.random()
        if chance < _REFUSED:
            return [EngineError("refused")] * len(messages)
        for each in messages:
            if random.random() >= _LOST:
                for _ in range(2 if random.random() < _TWICE else 1):
                    late = random.uniform(0, _LATE_SECONDS) if random.random() < _LATE else 0.0
                    delay = 0.0 if random.random() < _EARLY else each.delay
                    self._post(each.key, delay + late)
        if chance < _REFUSED + _SLOW:
            time.sleep(timeout)
        in_doubt = chance > 1 - _IN_DOUBT
        return [EngineError("taken, perhaps") if in_doubt else None] * len(messages)

    def _post(self, key: str, delay: float) -> None:
        due = SYSTEM_CLOCK.now() + delay
        (self._folder / f"{due:017.6f}.{secrets.token_hex(4)}.{key}").touch()

    def take(self) -> str | None:
        """Remove one of the messages that are due, and return its key; None if there is none."""
        now = SYSTEM_CLOCK.now()
        waiting = sorted(self._folder.iterdir())
        if self._random is not None:
            waiting = [each for each in waiting if float(each.name[:17]) <= now]
            self._random.shuffle(waiting)
        for each in waiting:
            with contextlib.suppress(FileNotFoundError):  # another worker was first
                each.unlink()
                return each.name.rpartition(".")[2]
        return None

    def clear(self) -> None:
        """Lose all messages."""
        for each in self._folder.iterdir():
            each.unlink()

    def close(self) -> None:
        """Do nothing: the folder belongs to the run."""
