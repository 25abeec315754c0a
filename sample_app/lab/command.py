"""The command `python -m sample_app lab`: the contention lab in a terminal."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sample_app.lab import timeline
from sample_app.lab.crew import Visit
from sample_app.lab.plan import MODES, Between, Plan, PlanError
from sample_app.lab.runs import run
from sample_app.stack import ChildDied, PortTaken
from sample_app.words import counted

_ROWS = (
    ("accepted", "accepted", "{:,.0f}"),
    ("lost updates", "lost", "{:,.0f}"),
    ("refused (409)", "refused", "{:,.0f}"),
    ("timed out (503)", "timed_out", "{:,.0f}"),
    ("failed", "failed", "{:,.0f}"),
    ("retries", "retries", "{:,.0f}"),
    ("degraded", "degraded", "{:,.0f}"),
    ("accepted per second", "per_second", "{:,.1f}"),
    ("median wait, ms", "wait_p50", "{:,.0f}"),
    ("wait, 99th percentile, ms", "wait_p99", "{:,.0f}"),
    ("longest wait, ms", "wait_longest", "{:,.0f}"),
    ("interactive p99, ms", "interactive_p99", "{:,.0f}"),
    ("batch p99, ms", "batch_p99", "{:,.0f}"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--between",
        action="append",
        metavar="PROTECTION",
        help=f"protection: {', '.join(Between)}; may be given more than "
        "once (default: all of them)",
    )
    parser.add_argument(
        "--mode", default=MODES[0], help=f"concurrency mode of the emulator: {', '.join(MODES)}"
    )
    parser.add_argument("--clients", default="8", help="concurrent clients (default: 8)")
    parser.add_argument("--requests", default="10", help="requests per client (default: 10)")
    parser.add_argument(
        "--hold-ms", default="20", help="milliseconds between reading and writing (default: 20)"
    )
    parser.add_argument(
        "--batch-percent",
        default="25",
        help="percentage of clients that are batch work (default: 25)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object per run")
    parser.add_argument(
        "--progress",
        action="store_true",
        help="with --json: print a line for each tenth of the requests",
    )
    parser.add_argument(
        "--svg", type=Path, metavar="FOLDER", help="write a timeline of each run to this folder"
    )


def main(options: argparse.Namespace) -> int:
    """Run the plans that the options describe.

    Returns 0; 1 if a server does not start; 2 for an invalid plan.
    """
    given = {
        name: str(getattr(options, name))
        for name in ("mode", "clients", "requests", "hold_ms", "batch_percent")
    }
    try:
        plans = [
            Plan.of({**given, "between": between}) for between in options.between or list(Between)
        ]
        if options.svg is not None and not options.svg.is_dir():
            raise PlanError(f"--svg: there is no folder {options.svg}")
    except PlanError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    runs = []
    try:
        for plan in plans:
            runs.append(_run(plan, options))
    except (ChildDied, PortTaken) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if not options.json:
        print(_table(plans, runs))
    return 0


def _run(plan: Plan, options: argparse.Namespace) -> dict[str, Any]:
    live = sys.stderr.isatty()
    tenth = max(plan.in_all // 10, 1)

    def progress(what: str, done: int) -> None:
        if options.json and options.progress and done % tenth == 0:
            print(json.dumps({"doing": what, "done": done}), flush=True)
        if live:
            print(f"\r\033[K{plan.title}: {what}, {done} of {plan.in_all}", end="", file=sys.stderr)

    found = run(plan, progress)
    if live:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if options.svg is not None:
        visits = [Visit(**each) for each in found["visits"]]
        file = options.svg / f"{plan.between}-{plan.mode}.svg"
        file.write_text(timeline.svg(visits, plan.title))
    if options.json:
        print(json.dumps(found), flush=True)
    return found


def _table(plans: list[Plan], runs: list[dict[str, Any]]) -> str:
    first = plans[0]
    columns = [["", *(label for label, _, _ in _ROWS)]]
    for plan, found in zip(plans, runs, strict=True):
        outcome = found["outcome"]
        cells = [
            "-" if outcome[key] is None else form.format(outcome[key]) for _, key, form in _ROWS
        ]
        columns.append([plan.between.value, *cells])
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for label, *figures in zip(*columns, strict=True):
        cells = [each.rjust(width) for each, width in zip(figures, widths[1:], strict=True)]
        lines.append("  ".join([label.ljust(widths[0]), *cells]).rstrip())
    head = (
        f"{counted(first.clients, 'client')}, {counted(first.requests, 'request')} each, "
        f"{first.hold_ms} ms between "
        f"reading and writing, {first.batch_percent} % batch; Datastore {first.mode}"
    )
    return "\n".join([head, "", *lines])
