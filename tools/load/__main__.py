"""`python -m tools.load`: send mixed traffic for a while; the exit code says whether all held."""

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
    """0 if all held, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m tools.load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for how long (default: 60)")
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")
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
        f"{outcome.answers:,} answers in {outcome.seconds:.0f} s",
        "",
        f"{'request':28}{'answers':>9}{'p50, ms':>9}{'longest':>9}  statuses",
    ]
    for row in outcome.requests:
        statuses = ", ".join(f"{key}: {value}" for key, value in _items(row["statuses"]))
        figures = f"{row['count']:>9,}{row['p50_ms']:>9}{row['longest_ms']:>9}"
        lines.append(f"{row['what']:28}{figures}  {statuses}")
    before, after = outcome.kilobytes
    lines += [
        "",
        f"memory of the workers: {before:,} kB in the beginning, {after:,} kB in the end; by the",
        f"second half a request leaves {outcome.leak_bytes:,.0f} bytes behind "
        f"(a leak: more than {LEAK_BYTES:,.0f})",
        "",
        *(f"FAULT: {each}" for each in outcome.faults),
        "This must not be." if outcome.faults else "All as it must be.",
    ]
    return "\n".join(lines)


def _items(statuses: object) -> list[tuple[int, int]]:
    assert isinstance(statuses, dict)
    return sorted(statuses.items())


if __name__ == "__main__":
    sys.exit(main())
