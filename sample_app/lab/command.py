"""The command `python -m sample_app lab`: the contention lab in a terminal."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sample_app.lab import timeline
from sample_app.lab.crashes import runs as crashes
from sample_app.lab.crashes.outcome import verdict as told
from sample_app.lab.crew import Visit
from sample_app.lab.outcome import lost_visits
from sample_app.lab.plan import MODES, Between, CrashPlan, Plan, PlanError, Scenario
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
    parser.add_argument(
        "--scenario",
        metavar="SCENARIO",
        help=f"instead of a counter: {' or '.join(Scenario)} whose workers are killed, without the "
        "library's protection and with it",
    )
    parser.add_argument("--orders", help="with --scenario: number of orders (default: 20)")
    parser.add_argument(
        "--kill-percent",
        help="with --scenario: percentage of orders whose worker is killed (default: 25)",
    )
    parser.add_argument("--clients", help="concurrent clients (default: 8; 4 with --scenario)")
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
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FOLDER",
        help="write the timelines of all runs as lab-light.svg and lab-dark.svg to this folder",
    )


def _write_picture(folder: Path, runs: list[dict[str, Any]]) -> None:
    """Write the timelines of all runs as one picture, in each colour scheme."""
    seconds = max(found["outcome"]["seconds"] for found in runs)
    pictures = [
        _drawn(found, seconds, title="{}: {lost:,} of {accepted:,} updates lost", styled=False)
        for found in runs
    ]
    for scheme in timeline.SCHEMES:
        (folder / f"lab-{scheme}.svg").write_text(timeline.together(pictures, scheme))


def _drawn(
    found: dict[str, Any], seconds: float = 0.0, *, title: str = "{}", styled: bool = True
) -> str:
    """Return the timeline of a run."""
    visits = [Visit(**each) for each in found["visits"]]
    return timeline.svg(
        visits,
        title.format(Plan(**found["plan"]).title, **found["outcome"]),
        seconds,
        lost=lost_visits(visits, found["outcome"]["stored"]),
        killed_at=found["killed_at"],
        styled=styled,
    )


def main(options: argparse.Namespace) -> int:
    """Run the plans that the options describe.

    Returns 0; 1 if a server does not start; 2 for an invalid plan.
    """
    if options.scenario is not None:
        return _crashes(options)
    given = {
        name: str(getattr(options, name) or "")
        for name in ("mode", "clients", "requests", "hold_ms", "batch_percent")
    }
    try:
        plans = [
            Plan.of({**given, "between": between}) for between in options.between or list(Between)
        ]
        for name in ("svg", "picture"):
            folder = getattr(options, name)
            if folder is not None and not folder.is_dir():
                raise PlanError(f"--{name}: there is no folder {folder}")
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
    if options.picture is not None:
        _write_picture(options.picture, runs)
    if not options.json:
        print(_table(plans, runs))
    return 0


def _crashes(options: argparse.Namespace) -> int:
    """Run a plan with orders. Returns as `main`."""
    try:
        plan = CrashPlan.of(
            {
                name: str(getattr(options, name) or "")
                for name in ("scenario", "orders", "clients", "kill_percent")
            }
        )
        with _progress(plan, options) as progress:
            found = crashes.run(plan, progress)
    except PlanError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (ChildDied, PortTaken) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps(found), flush=True)
        return 0
    print(f"{plan.title.capitalize()}: {plan.about}\n")
    for way, title in plan.scenario.ways.items():
        print(f"{title}: {told(plan.scenario, found['outcome'][way])}")
    return 0


@contextlib.contextmanager
def _progress(
    plan: Plan | CrashPlan, options: argparse.Namespace
) -> Iterator[Callable[[str, int], None]]:
    """Show the progress of a run: to programs each tenth, to people all of it."""
    live = sys.stderr.isatty()
    tenth = max(plan.in_all // 10, 1)

    def progress(what: str, done: int) -> None:
        if options.json and options.progress and done % tenth == 0:
            print(json.dumps({"doing": what, "done": done}), flush=True)
        if live:
            print(f"\r\033[K{plan.title}: {what}, {done} of {plan.in_all}", end="", file=sys.stderr)

    yield progress
    if live:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _run(plan: Plan, options: argparse.Namespace) -> dict[str, Any]:
    with _progress(plan, options) as progress:
        found = run(plan, progress)
    if options.svg is not None:
        (options.svg / f"{plan.between}-{plan.mode}.svg").write_text(_drawn(found))
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
