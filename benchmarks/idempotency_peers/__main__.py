"""`python -m benchmarks.idempotency_peers PYTHON`: the table of docs/benchmarks.md.

PYTHON is the interpreter of the environment with requirements.txt.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Mapping

from benchmarks.idempotency_peers.contestants import CONTESTANTS, CONTROL, Contestant, running
from benchmarks.idempotency_peers.situations import KEPT_BRIEFLY_SECONDS, SITUATIONS, Outcome

_KEPT_SECONDS = 86_400


def play(
    contestant: Contestant, python: str, *, hands_on: bool, only: set[int]
) -> dict[int, Outcome]:
    """Play the situations; return the outcomes by number, from 1."""
    outcomes = {}
    for brief in (False, True):
        chosen = [
            (number, each)
            for number, each in enumerate(SITUATIONS, 1)
            if each.keeps_briefly is brief and number in only
        ]
        if not chosen:
            continue
        keep_seconds = KEPT_BRIEFLY_SECONDS if brief else _KEPT_SECONDS
        with running(contestant, python, keep_seconds=keep_seconds, hands_on=hands_on) as stand:
            for number, situation in chosen:
                begun = time.monotonic()
                outcomes[number] = situation.run(stand, str(uuid.uuid4()))
                print(
                    f"{contestant.name}{' (key handed on)' if hands_on else ''} {number}: "
                    f"{outcomes[number].words}  {time.monotonic() - begun:.1f} s",
                    file=sys.stderr,
                )
    return outcomes


def cell(outcome: Outcome, hands_on: Outcome | None) -> str:
    """Return a cell of the table: the outcome, and that with the key handed on if it differs."""
    if hands_on is None or hands_on.words == outcome.words:
        return outcome.words
    return f"{outcome.words}; handed on: {hands_on.words}"


def table(columns: Mapping[str, Mapping[int, str]]) -> Iterator[str]:
    """Yield the lines of a table of outcomes in words, by contestant and number."""
    yield f"| | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for number, situation in enumerate(SITUATIONS, 1):
        cells = [column[number] for column in columns.values() if number in column]
        if cells:
            yield f"| {number}. {situation.line} | {' | '.join(cells)} |"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    # The processes start in other folders. A link to an interpreter is not the same environment.
    parser.add_argument(
        "python", type=os.path.abspath, help="the interpreter of the packages' environment"
    )
    parser.add_argument("--json", action="store_true", help="all facts, for programs")
    parser.add_argument("--contestant", action="append", help="only one whose name begins so")
    parser.add_argument("--only", type=int, action="append", help="only situations of this number")
    options = parser.parse_args(arguments)
    for program in ("memcached", "redis-server"):
        if shutil.which(program) is None:
            parser.exit(1, f"{program} is not on the PATH. To fix it: apt-get install {program}\n")
    only = set(options.only or range(1, len(SITUATIONS) + 1))
    found: dict[str, dict[int, tuple[Outcome, Outcome | None]]] = {}
    for each in CONTESTANTS:
        if options.contestant and not each.name.startswith(tuple(options.contestant)):
            continue
        plain = play(each, options.python, hands_on=False, only=only)
        handed = {} if each.is_ours else play(each, options.python, hands_on=True, only=only)
        found[each.name] = {number: (plain[number], handed.get(number)) for number in plain}
    if options.json:
        facts = {
            name: {
                number: [None if each is None else dataclasses.asdict(each) for each in pair]
                for number, pair in outcomes.items()
            }
            for name, outcomes in found.items()
        }
        print(json.dumps(facts, indent=1))
    else:
        run = {
            name: {number: cell(*pair) for number, pair in outcomes.items()}
            for name, outcomes in found.items()
        }
        print(*table(run), sep="\n")
        print(*(f"- {each.name}: {each.options}" for each in CONTESTANTS), sep="\n")
    unseen = [
        str(number)
        for number, outcome in play(CONTROL, options.python, hands_on=False, only=only).items()
        if not outcome.faults
    ]
    if unseen:
        parser.exit(1, f"right without any protection, so not tested: {', '.join(unseen)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
