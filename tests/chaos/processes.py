"""A whole run: servers, processes, faults, and the final checks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from google.cloud import ndb

from sample_app.stack.ports import LOOPBACK
from tests.chaos.crew import gathered
from tests.chaos.harms import Harm
from tests.chaos.history import History, read
from tests.chaos.models import stored_counters, stored_entries
from tests.chaos.mutations import Mutation
from tests.chaos.nemesis import Nemesis
from tests.chaos.stage import set_up
from tests.chaos.verdict import Verdict, judge
from tests.chaos.watched import WallClockOffset
from tests.chaos.worker import Config

#: The time for the last operation of each process, and its end.
_PATIENCE = 60.0

#: Of each process the mix of its programs, its threads and its outage policy.
MEMBERS = (
    ("interactive", 2, "optimistic"),
    ("interactive", 2, "optimistic"),
    ("interactive", 2, "fail"),
    ("batch", 1, "optimistic"),
    ("batch", 1, "fail"),
)


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        history: the records.
        verdict: the result of the checks.
        notes: the files with the records.
        seconds: the duration.
    """

    history: History
    verdict: Verdict
    notes: Sequence[Path]
    seconds: float


def run(
    folder: Path,
    *,
    seed: str,
    seconds: float,
    members: Sequence[tuple[str, int, str]] = MEMBERS,
    concurrency_mode: str = "optimistic",
    harms: frozenset[Harm] = frozenset(Harm),
    mutation: Mutation = Mutation.NONE,
) -> Result:
    """Run random programs, and compare the reported outcomes with the final state.

    Args:
        folder: an empty folder for records, logs and data.
        seed: the seed of the programs and the faults.
        seconds: the time during which operations are begun.
        members: the processes; see `MEMBERS`.
        concurrency_mode: the emulator's mode.
        harms: the sources of faults.
        mutation: the disabled rule of the library.

    Raises:
        Exception: the run itself has failed.
    """
    began = time.monotonic()
    with set_up(folder, concurrency_mode, seed) as stage:
        config = Config(
            seed=seed,
            url=stage.url,
            memcached=(LOOPBACK, stage.network.port),
            ports=(stage.network.port, stage.memcached.port),
            out=str(folder),
            mutation=mutation.value,
        )
        offset = WallClockOffset(config.wall_clock)
        harm_noted = folder / "nemesis.jsonl"
        with gathered(config, members) as crew:
            nemesis = Nemesis(stage, crew, offset, harm_noted, seed=seed)
            crew.go(seconds)
            nemesis.run(harms, seconds)
            ends = crew.finish(_PATIENCE)
            notes = [*crew.notes, harm_noted]
        history = read(notes)
        with ndb.Client().context():
            verdict = judge(history, stored_counters(), stored_entries(), ends)
    return Result(history, verdict, notes, time.monotonic() - began)
