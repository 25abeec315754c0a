"""`python -m tools.traffic`: simulate a day and print what it takes."""

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
    """Simulate what was asked for; the exit code."""
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
        help="how many the site has; may be given several times (default: 10^4 to 10^8)",
    )
    parser.add_argument(
        "--sample",
        type=_number(least=100),
        default=15_000,
        metavar="N",
        help="of the users who come, play the days of this many at most, or a few more "
        "(default: %(default)s; 100,000 users are played in full)",
    )
    parser.add_argument("--all", action="store_true", help="play every user's day, however long")
    parser.add_argument(
        "--sweep-at",
        type=float,
        metavar="HOUR",
        help="when the sweep begins (default: 2, at night)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="hold the simulation against a real memcached and real processes (half a minute)",
    )
    parser.add_argument("--seed", type=int, default=1, help="another one gives another day")
    parser.add_argument("--json", action="store_true", help="a JSON object a line, for programs")
    return parser


def _number(*, least: int) -> Callable[[str], int]:
    """Reads a whole number, `1_000` and `1,000` among them."""

    def number(text: str) -> int:
        found = int(text.replace("_", "").replace(",", ""))
        if found < least:
            raise argparse.ArgumentTypeError(f"it has to be {least} at least, not {text}")
        return found

    return number


if __name__ == "__main__":
    sys.exit(main())
