"""The whole system: the emulator, the real memcached and the site in two processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from sample_app.config import Protection
from sample_app.stack import Stack
from tests.servers import real


class StartStack(Protocol):
    """A function that starts a stack, which is stopped at the end of the test."""

    def __call__(
        self,
        protection: Protection = Protection.LOCK,
        *,
        think_ms: int = 0,
        lease_seconds: int = 60,
    ) -> Stack: ...


@pytest.fixture
def memcached_binary() -> str:
    """Provide the real memcached; if it is missing, fail in CI and skip elsewhere."""
    return real("memcached", "memcached")


@pytest.fixture
def start_stack(memcached_binary: str, tmp_path: Path) -> Iterator[StartStack]:
    started: list[Stack] = []

    def start(
        protection: Protection = Protection.LOCK, *, think_ms: int = 0, lease_seconds: int = 60
    ) -> Stack:
        stack = Stack(
            protection=protection,
            think_ms=think_ms,
            lease_seconds=lease_seconds,
            workers=2,
            threads=12,
            log_dir=tmp_path / f"stack-{len(started)}",
            memcached_binary=memcached_binary,
        )
        stack.start()
        started.append(stack)
        return stack

    yield start
    for stack in started:
        stack.stop()
