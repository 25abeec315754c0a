"""The command `python -m tools.load`: send mixed traffic; the exit code is the verdict."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sample_app.stack import Stack
from tools.load.memory import LEAK_BYTES
from tools.load.run import Outcome, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load test. Return 0 if all requirements held, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tools.load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="duration (default: 60)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="load-") as logs,
        Stack(log_dir=Path(logs), threads=12) as stack,
    ):
        outcome = run(stack, options.seconds)
    print(json.dumps(dataclasses.asdict(outcome)) if options.json else _table(outcome))
    return 1 if outcome.faults else 0


def _table(outcome: Outcome) -> str:
    lines = [
        f"{outcome.answers:,} responses in {outcome.seconds:.0f} s",
        "",
        f"{'request':28}{'responses':>11}{'median, ms':>12}{'longest, ms':>13}  statuses",
    ]
    for row in outcome.requests:
        statuses = ", ".join(f"{key}: {value}" for key, value in _items(row["statuses"]))
        figures = f"{row['count']:>11,}{row['p50_ms']:>12}{row['longest_ms']:>13}"
        lines.append(f"{row['what']:28}{figures}  {statuses}")
    before, after = outcome.kilobytes
    lines += [
        "",
        f"memory of the workers: {before:,} kB at the beginning, {after:,} kB at the end;",
        f"growth per request in the second half: {outcome.leak_bytes:,.0f} bytes "
        f"(a leak: more than {LEAK_BYTES:,.0f})",
        "",
        *(f"FAULT: {each}" for each in outcome.faults),
        "Failed." if outcome.faults else "All requirements held.",
    ]
    return "\n".join(lines)


def _items(statuses: object) -> list[tuple[int, int]]:
    assert isinstance(statuses, dict)
    return sorted(statuses.items())


if __name__ == "__main__":
    sys.exit(main())
