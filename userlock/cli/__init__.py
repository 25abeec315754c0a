"""Run the command line: show a lock, break it, watch contention, check the server, keep a baseline.

Each command is a module; `userlock.cli.entry` chooses among them.
"""

from __future__ import annotations

from userlock.cli.entry import main

__all__ = ["main"]
