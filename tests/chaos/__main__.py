"""The trial by itself: `make chaos DURATION=300 SEED=7`, or

    python -m tests.chaos --seconds 300 --seed 7 --out FOLDER

It goes in rounds of up to five minutes, in turn with the emulator in its
optimistic and in its pessimistic mode, each with servers of its own. Exit code
1, and the notes around it, if anything is wrong. To repeat one round: --round.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.findings import Finding
from tests.chaos.processes import Result, run
from tests.chaos.report import Report, excerpt

_ROUND_SECONDS = 300.0
_MODES = ("optimistic", "pessimistic")
_MOST_EXCERPTS = 5


def main() -> int:
    options = _options()
    seed = options.seed or str(random.randrange(10**6))
    options.out.mkdir(parents=True, exist_ok=True)
    count = max(len(_MODES), round(options.seconds / _ROUND_SECONDS))
    print(f"SEED={seed}, {count} rounds of {options.seconds / count:.0f} s", flush=True)
    report = Report(seed)
    for number in range(count) if options.round is None else [options.round - 1]:
        folder = Path(tempfile.mkdtemp(prefix="userlock-trial-"))
        folder.chmod(0o755)  # memcached may run as another user
        result = run(
            folder,
            seed=f"{seed}/{number}",
            seconds=options.seconds / count,
            concurrency_mode=_MODES[number % len(_MODES)],
        )
        report.add(result, number + 1)
        report.write(options.out)
        print(f"round {number + 1}: {len(result.verdict.findings)} findings", flush=True)
        for finding in result.verdict.findings[:_MOST_EXCERPTS]:
            _show(result, finding)
        if result.verdict.findings:
            print(f"The notes of this round are in {folder}. The same programs and faults:")
            again = f"--seconds {options.seconds:g} --seed {seed} --round {number + 1}"
            print(f"    python -m tests.chaos {again}", flush=True)
        else:
            shutil.rmtree(folder)
    print(report.brief())
    print(f"The whole report: {options.out}/report.md")
    return 1 if report.findings else 0


def _show(result: Result, finding: Finding) -> None:
    print(f"\n{finding}")
    for line in excerpt(result, finding):
        print(f"    {line}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="of all rounds together")
    parser.add_argument("--seed", default="", help="of programs and faults (default: a random one)")
    parser.add_argument("--out", type=Path, default=Path(".run/chaos"), help="for the report")
    parser.add_argument("--round", type=int, help="only this one, from 1 on")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
