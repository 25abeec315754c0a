"""How the benchmarks' processes begin.

They are forked from a server that has imported all that they need and done
nothing else. So they share nothing with the process that starts them, as if
they had been spawned, and eight of them do not import the same for seconds.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext


def context() -> ForkServerContext:
    """Makes processes, and pipes to them."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["benchmarks.__main__"])
    return found
