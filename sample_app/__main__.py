"""The command `python -m sample_app`: `run` starts the whole site on this machine, `lab` the
contention lab."""

from __future__ import annotations

import argparse
import sys

from sample_app.lab import command as lab
from sample_app.run import run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sample_app", description="A learning site that shows userlock at work."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    runner = commands.add_parser(
        "run",
        help="start the Datastore emulator, memcached and the site, until Ctrl-C",
        description="Starts the Datastore emulator, memcached (the real one if it is on the PATH) "
        "and the site in two worker processes, and stops them all on Ctrl-C.",
        epilog="Environment: PORT (8080), DATASTORE_PORT (8081, else any free one), "
        "MEMCACHED_PORT (11211, else any free one), PROTECTION (lock, lock-only, fencing or "
        "none), THINK_MS (0: pause between get and put, for demonstrations), LOG_DIR (.run).",
    )
    runner.set_defaults(command=lambda options: run())
    laboratory = commands.add_parser(
        "lab",
        help="real concurrent requests under each protection: lost updates and costs",
        description="Starts a site of its own for each run and has clients send concurrent "
        "requests that change one counter. Prints lost updates, refusals, retries and waits.",
    )
    lab.add_arguments(laboratory)
    laboratory.set_defaults(command=lab.main)
    options = parser.parse_args()
    return int(options.command(options))


if __name__ == "__main__":
    sys.exit(main())
