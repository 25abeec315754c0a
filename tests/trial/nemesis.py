"""Faults of the emulator: one after the other, which and when by a seed."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections import Counter
from collections.abc import Mapping
from random import Random
from types import TracebackType
from typing import Any

#: What is planted, and how often beside the others.
_FAULTS: tuple[tuple[Mapping[str, Any], int], ...] = (
    ({"fault": "drop_reply"}, 4),
    ({"fault": "abort"}, 3),
    ({"fault": "unavailable", "rpc": "Commit"}, 3),
    ({"fault": "unavailable", "rpc": "Lookup"}, 1),
    ({"fault": "unavailable", "rpc": "BeginTransaction"}, 1),
    ({"fault": "deadline_exceeded", "rpc": "Commit", "applied": True}, 1),
    ({"fault": "deadline_exceeded", "rpc": "Commit"}, 1),
    ({"fault": "delay", "seconds": 0.2, "rpc": "Commit"}, 2),
)
_SECONDS_BETWEEN = (0.02, 0.3)


class Nemesis:
    """Plants faults for as long as the block is not left.

    Args:
        url: of the faults of an emulator.
        seed: of what is planted.

    Attributes:
        planted: how many of each.
    """

    def __init__(self, url: str, seed: int) -> None:
        self.planted: Counter[str] = Counter()
        self._url = url
        self._random = Random(f"{seed}/nemesis")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        faults, weights = zip(*_FAULTS, strict=True)
        while not self._over.wait(self._random.uniform(*_SECONDS_BETWEEN)):
            (fault,) = self._random.choices(faults, weights)
            self._ask("POST", fault)
            self.planted[fault["fault"]] += 1

    def _ask(self, method: str, body: Mapping[str, Any] | None = None) -> None:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url, data, method=method)  # noqa: S310
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310 (loopback)
            pass

    def __enter__(self) -> Nemesis:
        self._thread.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._ask("DELETE")
