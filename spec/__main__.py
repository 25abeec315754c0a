"""The command `make spec`: checks the models exhaustively with spin, and prints a table.

With `--trace TEXT` it prints the steps of a counter-example instead. The exit code is 1 if any
check has an unexpected result, or was not finished.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
    said = _said_last(_commands(check, ["-DSAFETY"]))
    return understand(said, time.monotonic() - began)


def trace(check: Check) -> str:
    """Return the steps of a counter-example: the shortest one, except of a formula.

    Raises:
        CalledProcessError: a model does not compile.
        ValueError: there is none.
    """
    replay = ["spin", *check.options, "-t", "-B", check.model]
    told = "printf(" in (_HERE / check.model).read_text()
    if not told:
        replay.insert(-1, "-p")
    try:
        return _said_last([*_commands(check, ["-DSAFETY", "-DBFS"]), replay])
    except subprocess.CalledProcessError as error:
        if error.cmd != replay:
            raise
        raise ValueError(f"no counter-example: {check.says}") from None


def _said_last(commands: list[list[str]]) -> str:
    """Run commands in a folder with the models; return the output of the last one."""
    with tempfile.TemporaryDirectory(prefix="userlock-spec-") as folder:
        for model in _HERE.glob("*.pml"):
            shutil.copy(model, folder)
        for command in commands:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode and command[0] != "./pan":
                raise subprocess.CalledProcessError(
                    done.returncode, command, done.stdout, done.stderr
                )
    return done.stdout


def _commands(check: Check, safety: list[str]) -> list[list[str]]:
    """Return the commands that search. `safety`: the compiler's options for assertions alone."""
    claim = ["-a", "-f", "-N", check.claim] if check.claim else []
    memory = [f"-DMEMLIM={_MEGABYTES}", "-DCOLLAPSE", "-DVECTORSZ=2048", "-DNFAIR=3"]
    return [
        ["spin", *check.options, "-a", check.model],
        # Optimising takes longer than the search: the verifier is a few huge functions.
        ["gcc", "-O0", "-w", *(() if claim else safety), *memory, "-o", "pan", "pan.c"],
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
    parser.add_argument(
        "--trace", metavar="TEXT", help="print the counter-example of each run with that text"
    )
    given = parser.parse_args(arguments)
    if shutil.which("spin") is None or shutil.which("gcc") is None:
        print("The models need spin and gcc: `make servers` installs them.", file=sys.stderr)
        return 1
    if given.trace is not None:
        return _print_traces(given.trace)
    print(f"{'run':70} {'states':>10} {'depth':>7} {'seconds':>7}  verdict")
    # The long checks need the memory of the machine.
    return max(_run_all(CHECKS, at_once=2), _run_all(LONG_CHECKS if given.full else (), at_once=1))


def _run_all(checks: Sequence[Check], at_once: int) -> int:
    """Run the checks and print a line for each; return the exit code."""
    wrong = 0
    with ThreadPoolExecutor(at_once) as pool:
        for check, outcome in zip(checks, pool.map(run, checks), strict=True):
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


def _print_traces(text: str) -> int:
    found = [each for each in CHECKS if not each.holds and text in each.says]
    for check in found:
        print(f"--- {check.says}\n{trace(check)}", flush=True)
    if not found:
        print(
            f"No run that must fail has {text!r} in its name: see spec/checks.py", file=sys.stderr
        )
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
