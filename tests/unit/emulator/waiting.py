"""Running a call in a thread that should wait for something."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Started:
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._outcome: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome = self._call()
        except BaseException as error:  # passed to the thread that takes the result
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(10)
        assert self.done, "still waiting"
        if self._error is not None:
            raise self._error
        return self._outcome
