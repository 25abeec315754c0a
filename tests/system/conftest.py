"""The whole system: the emulator, the real memcached and the site in two processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sample_app.stack import Stack
from tests.servers import real

#: Starts a stack with options, which is stopped at the end of the test.
StartStack = Callable[..., Stack]


@pytest.fixture
def start_stack(tmp_path: Path) -> Iterator[StartStack]:
    binary = real("memcached", "memcached")
    with ExitStack() as stacks:

        def start(**options: Any) -> Stack:
            stack = Stack(threads=12, log_dir=tmp_path, memcached_binary=binary, **options)
            return stacks.enter_context(stack)

        yield start
