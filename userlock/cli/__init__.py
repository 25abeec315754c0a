"""Run the command line: locks, jobs, requests, quotas, unique values, the server, the baseline.

Each command is a module; `userlock.cli.entry` chooses among them.
"""

from __future__ import annotations

from userlock.cli.entry import main

__all__ = ["main"]
