"""Run the command line on a terminal, a clock and a lock service that the test controls."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from unittest import mock

from userlock.admin.command import Console
from userlock.cli import main
from userlock.clock import Clock
from userlock.events import Listeners
from userlock.lock import lease as lease_module
from userlock.lock.lease import Claim, Holder, Lease, process_label
from userlock.lock.record import joining
from userlock.lock.service import LockService
from userlock.lock.store import LeaseStore
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

STORE = "memory://"

_new_claim = lease_module.new_claim


class Text(io.StringIO):
    """A stream that may be a terminal, with text that is typed."""

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
    def is_printable(self) -> bool:
        text = self.out + self.err
        return "Traceback" not in text and all(line.isprintable() for line in text.split("\n"))

    @property
    def document(self) -> dict[str, Any]:
        assert self.out.count("\n") == 1
        assert self.out.endswith("\n")
        found: dict[str, Any] = json.loads(self.out, parse_constant=_no_json)
        return found


def _no_json(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


class Terminal:
    def __init__(self, store: LeaseStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.environ: dict[str, str] = {"USERLOCK_STORE": STORE, "TERM": "xterm"}
        self.urls: list[str] = []
        self.service = self._connect(STORE, clock)
        self.lease: Lease | None = None  # for a test to keep

    def _connect(self, url: str, clock: Clock) -> LockService:
        self.urls.append(url)
        return LockService(self.store, outage="fail", listeners=Listeners(), clock=clock)

    def run(
        self,
        *arguments: str,
        typed: str | None = None,
        while_asked: Callable[[], object] = lambda: None,
    ) -> Outcome:
        """Run one command. `typed`: None where standard input is no terminal."""
        stdin = Text(typed or "", tty=typed is not None, first=while_asked)
        stdout, stderr = Text(), Text()
        console = Console(stdin, stdout, stderr, self.environ, self.clock)
        code = main(arguments, console=console, connect=self._connect)
        return Outcome(code, stdout.getvalue(), stderr.getvalue())

    # --- the scene --------------------------------------------------------------------------

    def hold(self, lock_id: str, request: str = "POST /answers", process: str = "") -> Lease:
        label = process or process_label()

        def new_claim(*facts: Any) -> Claim:
            return dataclasses.replace(_new_claim(*facts), process=label)

        with (
            mock.patch.object(lease_module, "new_claim", new_claim),
            mock.patch.object(lease_module, "process_label", return_value=label),
        ):
            return self.service.acquire(lock_id, wait_timeout=0, request=request)

    def wait(
        self,
        lock_id: str,
        token: str,
        request: str,
        priority: str = "interactive",
        process: str = "",
    ) -> None:
        label = process or f"web-{token}/7"
        holder = Holder(token, priority, self.clock.wall(), 60.0, label, request)
        assert self.store.append(lock_id, joining(holder)) is not None

    def memory(self) -> MemoryStore:
        assert isinstance(self.store, MemoryStore)
        return self.store


def in_thread(run: Callable[[], Outcome]) -> Outcome:
    """Run a command in a thread, outside of the test's ndb context and lock scope."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
