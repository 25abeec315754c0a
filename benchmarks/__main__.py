"""`python -m benchmarks`: measure, and print a table or JSON lines.

Exit codes: 0 when everything ran, whatever the figures are; 2 when it cannot
run here (no memcached).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks import handoff, lock, machine, provenance, report
from benchmarks.figures import Section
from benchmarks.server import NoMemcached, memcached


class Measure(Protocol):
    """Measures one section."""

    def __call__(self, *, quick: bool) -> Section: ...


SECTIONS: dict[str, Measure] = {
    "lock": lock.run,
    "handoff": handoff.run,
    "provenance": provenance.run,
}
_WITHOUT_MEMCACHED = {"provenance"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; the exit code."""
    options = _parser().parse_args(arguments)
    chosen = options.only or list(SECTIONS)
    try:
        _run(chosen, as_json=options.json, quick=options.quick, show=_print)
    except NoMemcached as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _run(chosen: Sequence[str], *, as_json: bool, quick: bool, show: Callable[[str], None]) -> None:
    version = None
    if not _WITHOUT_MEMCACHED.issuperset(chosen):
        with memcached() as server:
            version = server.stats()["version"]
    facts = machine.facts(version)
    for line in report.header_lines(facts) if as_json else [report.header(facts)]:
        show(line)
    for name in chosen:
        if sys.stderr.isatty():
            print(f"measuring {name} …", end="\r", file=sys.stderr, flush=True)
        section = SECTIONS[name](quick=quick)
        if sys.stderr.isatty():
            print("\033[K", end="", file=sys.stderr, flush=True)
        if as_json:
            for line in report.section_lines(section):
                show(line)
        else:
            show("\n" + report.section_text(section))


def _print(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what userlock costs on this machine, on a real memcached.",
    )
    parser.add_argument("--json", action="store_true", help="a JSON object a line, for programs")
    parser.add_argument(
        "--quick", action="store_true", help="a few seconds only: too short to trust the figures"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(SECTIONS),
        metavar="NAME",
        help=f"only this section: {', '.join(SECTIONS)} (may be given more than once)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
