"""The whole trial: servers, processes, faults; and what is found in the end."""

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

#: For the last operation of each, and its end.
_PATIENCE = 60.0

#: Of each process the mix of its programs, its threads and its outage policy.
MEMBERS = (
    ("people", 2, "optimistic"),
    ("people", 2, "optimistic"),
    ("people", 2, "fail"),
    ("batch", 1, "optimistic"),
    ("batch", 1, "fail"),
)


@dataclasses.dataclass(frozen=True)
class Result:
    """What has happened.

    Attributes:
        history: all that was noted.
        verdict: what is wrong with it.
        notes: the files that it was noted in.
        seconds: how long it took.
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
    """Let random programs run, and compare what they were told with what is there in the end.

    Args:
        folder: for notes, logs and data; an empty one.
        seed: of the programs and the faults.
        seconds: for how long operations are begun.
        members: the processes; see `MEMBERS`.
        concurrency_mode: of the emulator.
        harms: who does harm.
        mutation: what is taken out of the library.

    Raises:
        Exception: the trial itself has failed.
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
