"""`python -m userlock_emulator`: the Datastore emulator in a process of its own."""

import sys

from userlock_emulator.cli import main

if __name__ == "__main__":
    sys.exit(main())
