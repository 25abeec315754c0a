"""The command `python -m tools.traffic`: simulate a day and print its needs."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence

from tools.traffic import check, report
from tools.traffic.day import play
from tools.traffic.profile import Profile

USERS = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulations and return the exit code."""
    options = _parser().parse_args(arguments)
    if options.check:
        return check.main(options.seed)
    profile = Profile()
    if options.sweep_at is not None:
        profile = dataclasses.replace(profile, sweep_starts=options.sweep_at * 3600)
    results = []
    for users in options.users or USERS:
        result = play(
            profile, users, seed=options.seed, sample=None if options.all else options.sample
        )
        if options.json:
            print(report.as_json(result), flush=True)
        results.append(result)
    if not options.json:
        print(f"{report.table(results)}\n\n{report.notes(results)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.traffic", description=__doc__)
    parser.add_argument(
        "--users",
        type=_number(least=100),
        action="append",
        metavar="N",
        help="number of users; may be repeated (default: 10^4 to 10^8)",
    )
    parser.add_argument(
        "--sample",
        type=_number(least=100),
        default=15_000,
        metavar="N",
        help="maximal number of active users to simulate, or a few more "
        "(default: %(default)s; 100,000 users are simulated in full)",
    )
    parser.add_argument("--all", action="store_true", help="simulate every user's day")
    parser.add_argument(
        "--sweep-at",
        type=float,
        metavar="HOUR",
        help="start of the sweep (default: 2, at night)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare the simulation with a real memcached and real processes (half a minute)",
    )
    parser.add_argument("--seed", type=int, default=1, help="another seed gives another day")
    parser.add_argument("--json", action="store_true", help="print a JSON object per line")
    return parser


def _number(*, least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers, including `1_000` and `1,000`."""

    def number(text: str) -> int:
        found = int(text.replace("_", "").replace(",", ""))
        if found < least:
            raise argparse.ArgumentTypeError(f"it has to be {least} at least, not {text}")
        return found

    return number


if __name__ == "__main__":
    sys.exit(main())
