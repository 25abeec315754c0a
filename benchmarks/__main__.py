"""The command `python -m benchmarks`: measure, and print tables or JSON lines.

Exit codes: 0 if everything ran, with any figures; 1 if userlock violated mutual exclusion; 2 if it
cannot run here (no memcached).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks import (
    batch,
    cluster,
    crowd,
    datastore,
    fairness,
    handoff,
    idempotency,
    lock,
    locks,
    machine,
    outage,
    outbox,
    plot,
    provenance,
    report,
)
from benchmarks.contest import ExclusionViolated
from benchmarks.figures import Section
from benchmarks.server import NoMemcached, memcached, redis


class Measure(Protocol):
    """A function that measures one section."""

    def __call__(self, *, quick: bool) -> Section: ...


SECTIONS: dict[str, Measure] = {
    "lock": lock.run,
    "cluster": cluster.run,
    "handoff": handoff.run,
    "fairness": fairness.run,
    "crowd": crowd.run,
    "batch": batch.run,
    "outage": outage.run,
    "provenance": provenance.run,
    "emulator": datastore.run,
    "outbox": outbox.run,
    "idempotency": idempotency.run,
}
_WITHOUT_SERVERS = {"provenance", "emulator", "outbox"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected sections and return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    chosen = options.only or list(SECTIONS)
    if options.plot and "fairness" not in chosen:
        parser.error("--plot shows the waits of the section fairness: leave out --only, or add it")
    if options.plot and not options.plot.parent.is_dir():
        parser.error(f"--plot: there is no folder {options.plot.parent}")
    try:
        _run(chosen, as_json=options.json, quick=options.quick, file=options.plot, show=_print)
    except ExclusionViolated as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except NoMemcached as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _run(
    chosen: Sequence[str],
    *,
    as_json: bool,
    quick: bool,
    file: Path | None,
    show: Callable[[str], None],
) -> None:
    servers = {} if _WITHOUT_SERVERS.issuperset(chosen) else _servers()
    facts = machine.facts({**servers, **(locks.versions() if servers else {})})
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
        if file is not None and section.waits:
            file.write_text(plot.svg(section.waits, subtitle=plot.subtitle(servers)))


def _servers() -> dict[str, str]:
    """Return the available servers and their versions."""
    with memcached() as server:
        found = {"memcached": server.stats()["version"]}
    binary = locks.redis_binary()
    if binary is not None:
        with redis(binary) as running:
            found["Redis"] = running.info("server")["redis_version"]
    return found


def _print(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the costs of userlock and other locks here, on real servers.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object per line")
    parser.add_argument(
        "--quick", action="store_true", help="under a minute: too short to trust the figures"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(SECTIONS),
        metavar="NAME",
        help=f"only this section: {', '.join(SECTIONS)} (may be repeated)",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="write the waits of the section fairness as a plot (SVG), with the tables",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
