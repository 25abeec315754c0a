"""Run the command line: `python -m userlock` is the command `userlock`."""

from __future__ import annotations

import sys

from userlock.cli import main

if __name__ == "__main__":
    sys.exit(main())
