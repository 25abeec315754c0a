"""Run the same random programs on this emulator and on Google's, and list the differences.

    python -m tools.compare [--programs 200] [--seed 1] [--only datastore] [--all]

Google's emulators are those of the Cloud SDK on this machine (gcloud and java on the PATH), each
started for the run; or the one at GOOGLE_EMULATOR=HOST:PORT, which stays as it is except for
projects named compare-…. Without either it prints "skipped".

Exit codes: 0, each difference is in the table of known ones (`known.py`), or it was skipped;
1, there are others; 2, the arguments are wrong or an emulator does not start.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import userlock_emulator
from sample_app.stack.children import ChildDied
from tools.compare import servers
from tools.compare.known import known
from tools.compare.report import lines
from tools.compare.running import compare

_VARIABLE = "GOOGLE_EMULATOR"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit code."""
    options = _parser().parse_args(arguments)
    given = os.environ.get(_VARIABLE)
    names = [options.only] if options.only else list(servers.NAMES)
    if given:
        names = names[:1]
    else:
        there = servers.installed()
        names = [name for name in names if name in there]
    if not names:
        print("skipped")
        return 0
    seeds = range(options.seed, options.seed + options.programs)
    unexplained = 0
    try:
        for name in names:
            with _address(name, given) as theirs:
                unexplained += _compare(name, theirs, seeds, known_too=options.all)
    except ChildDied as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if unexplained else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.compare")
    parser.add_argument("--programs", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=1, help="the first one's (default: %(default)s)"
    )
    parser.add_argument(
        "--only",
        choices=servers.NAMES,
        help=f"one of Google's emulators; with {_VARIABLE}, the one that is there (default: both;"
        f" with {_VARIABLE} the first)",
    )
    parser.add_argument("--all", action="store_true", help="examples of known differences, too")
    return parser


@contextmanager
def _address(name: str, given: str | None) -> Iterator[str]:
    if given:
        yield given
        return
    with (
        tempfile.TemporaryDirectory(prefix="compare-emulators-") as folder,
        servers.started(name, servers.installed()[name], Path(folder)) as running,
    ):
        yield running.address


def _compare(name: str, theirs: str, seeds: Sequence[int], *, known_too: bool) -> int:
    """Print the differences from one emulator; return the number of unexplained ones."""
    began = time.monotonic()
    with userlock_emulator.start() as ours:
        differences = list(compare(ours.host, theirs, seeds, mark=secrets.token_hex(4)))
    seconds = time.monotonic() - began
    unexplained = sum(known(name, each) is None for each in differences)
    print(
        f"{name}: {len(seeds)} programs from seed {seeds[0]} in {seconds:.0f} s:"
        f" {len(differences)} differences, {unexplained} of them unexplained"
    )
    for line in lines(name, differences, known_too=known_too):
        print(line)
    return unexplained


if __name__ == "__main__":
    sys.exit(main())
