"""`python -m emulator`: the Datastore emulator in a process of its own."""

import sys

from emulator.cli import main

if __name__ == "__main__":
    sys.exit(main())
