"""The start of the benchmarks' processes.

They are forked from a server that has only imported their modules. Like spawned processes, they
share nothing with the process that starts them. But eight of them do not repeat seconds of imports.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext


def context() -> ForkServerContext:
    """Return the context that creates processes, and pipes to them."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["benchmarks.__main__"])
    return found
