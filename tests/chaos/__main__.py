"""The command `make chaos DURATION=300 SEED=7 STORE=redis`, or

    python -m tests.chaos --seconds 300 --seed 7 --store redis --out FOLDER

It runs in rounds of up to five minutes, alternating between the emulator's optimistic and
pessimistic modes, each with servers of its own. If anything is wrong, it prints the surrounding
records and exits with 1. To repeat one round: --round.
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
from tests.chaos.stores import STORES

_ROUND_SECONDS = 300.0
_MODES = ("optimistic", "pessimistic")
_MOST_EXCERPTS = 5


def main() -> int:
    options = _options()
    seed = options.seed or str(random.randrange(10**6))
    options.out.mkdir(parents=True, exist_ok=True)
    count = max(len(_MODES), round(options.seconds / _ROUND_SECONDS))
    print(
        f"STORE={options.store} SEED={seed}, {count} rounds of {options.seconds / count:.0f} s",
        flush=True,
    )
    report = Report(seed, options.store)
    for number in range(count) if options.round is None else [options.round - 1]:
        folder = Path(tempfile.mkdtemp(prefix="userlock-trial-"))
        folder.chmod(0o755)  # memcached may run as another user
        result = run(
            folder,
            seed=f"{seed}/{number}",
            seconds=options.seconds / count,
            store=options.store,
            concurrency_mode=_MODES[number % len(_MODES)],
        )
        report.add(result, number + 1)
        report.write(options.out)
        print(f"round {number + 1}: {len(result.verdict.findings)} findings", flush=True)
        for finding in result.verdict.findings[:_MOST_EXCERPTS]:
            _show(result, finding)
        if result.verdict.findings:
            print(f"The records of this round are in {folder}. To repeat it:")
            again = f"--seconds {options.seconds:g} --seed {seed} --round {number + 1}"
            print(f"    python -m tests.chaos --store {options.store} {again}", flush=True)
        else:
            shutil.rmtree(folder)
    print(report.brief())
    print(f"The whole report: {options.out}/report.json")
    return 1 if report.findings else 0


def _show(result: Result, finding: Finding) -> None:
    print(f"\n{finding}")
    for line in excerpt(result, finding):
        print(f"    {line}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="total duration of all rounds")
    parser.add_argument("--seed", default="", help="seed of programs and faults (default: random)")
    parser.add_argument("--store", choices=STORES, default="memcached", help="the lease store")
    parser.add_argument(
        "--out", type=Path, default=Path(".run/chaos"), help="folder for the report"
    )
    parser.add_argument("--round", type=int, help="only this round, counted from 1")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
