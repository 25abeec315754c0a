"""A whole run: servers, processes, faults, and the final checks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from google.cloud import ndb

from sample_app.stack.ports import LOOPBACK
from tests.chaos.crew import gathered
from tests.chaos.garden import files_of
from tests.chaos.harms import Harm
from tests.chaos.history import History, read
from tests.chaos.models import (
    stored_counters,
    stored_entries,
    stored_jobs,
    stored_strays,
    stored_trees,
    unfinished_requests,
)
from tests.chaos.mutations import Mutation
from tests.chaos.nemesis import Nemesis
from tests.chaos.stage import set_up
from tests.chaos.stores import STORES, Members
from tests.chaos.verdict import Verdict, judge
from tests.chaos.watched import WallClockOffset
from tests.chaos.worker import Config

#: The time for the last operation of each process, and its end.
_PATIENCE = 60.0


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a run."""

    history: History
    verdict: Verdict
    notes: Sequence[Path]
    seconds: float


def run(
    folder: Path,
    *,
    seed: str,
    seconds: float,
    store: str = "memcached",
    members: Members | None = None,
    concurrency_mode: str = "optimistic",
    harms: frozenset[Harm] = frozenset(Harm),
    mutation: Mutation = Mutation.NONE,
) -> Result:
    """Run random programs, and compare the reported outcomes with the final state.

    Args:
        seconds: the time during which operations are begun.
        members: the processes; by default the kind's.
        harms: the sources of faults, of which those apply that the kind has.
    """
    began = time.monotonic()
    kind = STORES[store]
    with set_up(kind, folder, concurrency_mode, seed) as stage:
        config = Config(
            seed=seed,
            url=stage.url,
            fallback=kind.fallback,
            memcached=(LOOPBACK, stage.cache_port),
            ports=stage.ports,
            homes={
                lock: stage.lease_servers[number].network.port
                for lock, number in stage.homes.items()
                if stage.grouped is None  # a replica cannot be flushed
            },
            flush=kind.flush,
            out=str(folder),
            mutation=mutation.value,
        )
        offset = WallClockOffset(config.wall_clock)
        harm_noted = folder / "nemesis.jsonl"
        with gathered(config, kind.members if members is None else members) as crew:
            nemesis = Nemesis(stage, crew, offset, harm_noted, seed=seed, kind=kind)
            crew.go(seconds)
            nemesis.run(harms, seconds)
            ends = crew.finish(_PATIENCE)
            notes = [*crew.notes, harm_noted]
        history = read(notes)
        with ndb.Client().context():
            verdict = judge(
                history,
                stored_counters(),
                stored_entries(),
                stored_jobs(),
                stored_trees(files_of(folder)),
                stored_strays(),
                unfinished_requests(),
                ends,
                kind,
            )
    return Result(history, verdict, notes, time.monotonic() - began)
