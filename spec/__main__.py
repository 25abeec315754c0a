"""The command `make spec`: checks the models exhaustively with spin, and prints a table.

The exit code is 1 if any check has an unexpected result, or was not finished.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from spec.checks import CHECKS, LONG_CHECKS, Check

_HERE = Path(__file__).parent
_MEGABYTES = 16000


class Outcome(NamedTuple):
    """The result of a check.

    Attributes:
        verdict: "holds", "fails", or an error.
        states: number of visited states.
        depth: the longest path, in steps.
        seconds: the time of spin, the compiler and the search.
    """

    verdict: str
    states: int
    depth: int
    seconds: float


def run(check: Check) -> Outcome:
    """Run one check. Raises `CalledProcessError` if a model does not compile."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="userlock-spec-") as folder:
        for model in _HERE.glob("*.pml"):
            shutil.copy(model, folder)
        for command in _commands(check):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode and command[0] != "./pan":
                raise subprocess.CalledProcessError(
                    done.returncode, command, done.stdout, done.stderr
                )
    return understand(done.stdout, time.monotonic() - began)


def _commands(check: Check) -> list[list[str]]:
    claim, safety = (["-a", "-f", "-N", check.claim], []) if check.claim else ([], ["-DSAFETY"])
    memory = [f"-DMEMLIM={_MEGABYTES}", "-DCOLLAPSE", "-DVECTORSZ=2048", "-DNFAIR=3"]
    return [
        ["spin", *check.options, "-a", check.model],
        # Optimising takes longer than the search: the verifier is a few huge functions.
        ["gcc", "-O0", "-w", *safety, *memory, "-o", "pan", "pan.c"],
        ["./pan", "-m1000000", "-w22", *claim],
    ]


def understand(said: str, seconds: float) -> Outcome:
    """Parse a verifier's output. A search that was cut short has its own verdict."""
    states = re.search(r"(\d+) states, stored", said)
    depth = re.search(r"depth reached (\d+)", said)
    errors = re.search(r"errors: (\d+)", said)
    if errors is None or states is None or depth is None:
        verdict = "not finished"
    elif errors[1] != "0":
        verdict = "fails"
    elif "Search not completed" in said or "max search depth too small" in said:
        verdict = "not finished"
    else:
        verdict = "holds"
    return Outcome(verdict, int(states[1]) if states else 0, int(depth[1]) if depth else 0, seconds)


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m spec", description=__doc__)
    parser.add_argument("--full", action="store_true", help="also run the checks that take minutes")
    full = parser.parse_args(arguments).full
    if shutil.which("spin") is None or shutil.which("gcc") is None:
        print("The models need spin and gcc: `make servers` installs them.", file=sys.stderr)
        return 1
    wrong = 0
    print(f"{'run':70} {'states':>10} {'depth':>7} {'seconds':>7}  verdict")
    for check in (*CHECKS, *(LONG_CHECKS if full else ())):
        outcome = run(check)
        expected = "holds" if check.holds else "fails"
        note = "" if outcome.verdict == expected else f"  (should be: {expected})"
        wrong += bool(note)
        verdict = f"{outcome.verdict}{', as expected' if not check.holds and not note else ''}"
        print(
            f"{check.says:70} {outcome.states:10,} {outcome.depth:7,} "
            f"{outcome.seconds:7.1f}  {verdict}{note}",
            flush=True,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
