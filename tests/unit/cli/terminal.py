"""The command line with a terminal, a clock and a lock service in the test's hands."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

from userlock.cli.console import Console
from userlock.cli.entry import main
from userlock.clock import Clock
from userlock.events import Listeners
from userlock.lock import service as service_module
from userlock.lock.lease import Holder, Lease, process_label
from userlock.lock.record import joining
from userlock.lock.service import LockService
from userlock.lock.store import LeaseStore
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

STORE = "memory://"


class Text(io.StringIO):
    """A stream that may be a terminal, and may have somebody type into it."""

    def __init__(
        self, text: str = "", *, tty: bool = False, first: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(text)
        self._tty = tty
        self._first = first

    def isatty(self) -> bool:
        return self._tty

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        self._first()
        return super().readline() if size is None else super().readline(size)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document that it wrote."""
        assert self.out.count("\n") == 1
        assert self.out.endswith("\n")
        found: dict[str, Any] = json.loads(self.out, parse_constant=_no_json)
        return found


def _no_json(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


class Terminal:
    """Runs commands against one store."""

    def __init__(self, store: LeaseStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.size = (80, 24)
        self.environ: dict[str, str] = {"USERLOCK_STORE": STORE, "TERM": "xterm"}
        self.urls: list[str] = []
        self.service = self._connect(STORE, clock)

    def _connect(self, url: str, clock: Clock) -> LockService:
        self.urls.append(url)
        return LockService(self.store, outage="fail", listeners=Listeners(), clock=clock)

    def run(
        self,
        *arguments: str,
        typed: str | None = None,
        tty: bool = False,
        while_asked: Callable[[], object] = lambda: None,
    ) -> Outcome:
        """Carry out one command.

        Args:
            arguments: after the program's name.
            typed: what somebody types; None: standard input is no terminal.
            tty: standard output is a terminal.
            while_asked: what happens while somebody thinks.
        """
        stdin = Text(typed or "", tty=typed is not None, first=while_asked)
        stdout, stderr = Text(tty=tty), Text()
        console = Console(stdin, stdout, stderr, self.environ, self.clock, lambda: self.size)
        code = main(arguments, console=console, connect=self._connect)
        return Outcome(code, stdout.getvalue(), stderr.getvalue())

    # --- the scene --------------------------------------------------------------------------

    def hold(self, lock_id: str, request: str = "POST /answers", process: str = "") -> Lease:
        """Somebody has the lock: this process, or one that is named."""
        label = process or process_label()
        with mock.patch.object(service_module, "process_label", return_value=label):
            return self.service.acquire(lock_id, wait_timeout=0, request=request)

    def wait(
        self,
        lock_id: str,
        token: str,
        request: str,
        priority: str = "interactive",
        process: str = "",
    ) -> None:
        """Somebody stands in line, since now."""
        label = process or f"web-{token}/7"
        holder = Holder(token, priority, self.clock.wall(), 60.0, label, request)
        assert self.store.append(lock_id, joining(holder)) is not None

    def memory(self) -> MemoryStore:
        assert isinstance(self.store, MemoryStore)
        return self.store
