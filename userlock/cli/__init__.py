"""The command line: who holds a lock, breaking it, watching, measuring, asking the server.

`userlock.cli.entry` has the commands together; each is a module of its own.
"""

from __future__ import annotations

from userlock.cli.entry import main

__all__ = ["main"]
