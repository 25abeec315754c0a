"""The whole trial: servers, processes, faults; and what is found in the end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest import mock

from google.cloud import ndb

from sample_app.stack.ports import LOOPBACK
from tests.contract.emulator.process import EmulatorProcess
from tests.servers import Memcached
from tests.trial.checker import Finding, Kind, check
from tests.trial.crew import Crew, gathered
from tests.trial.models import stored_counters, stored_entries
from tests.trial.nemesis import Nemesis
from tests.trial.record import Outcome, Write, read
from tests.trial.worker import Config

_PROJECT = "trial"
#: For the last operation of each, and its end.
_PATIENCE = 60.0
_SECONDS_BETWEEN_KILLS = (3.0, 6.0)
_KILLS_BEFORE_END = 8.0


@dataclasses.dataclass(frozen=True)
class Result:
    """What has happened.

    Attributes:
        writes: all that were made.
        findings: what is wrong.
        operations: how many ended how, as the processes say.
        faults: how many were planted of each.
        killed: how many processes were; what they did is not among the operations.
    """

    writes: list[Write]
    findings: list[Finding]
    operations: Counter[str]
    faults: Counter[str]
    killed: int

    def told(self, outcome: Outcome) -> int:
        """How many writes were told that."""
        return sum(write.outcome is outcome for write in self.writes)

    def found(self, kind: Kind) -> list[Finding]:
        """What is wrong in that way."""
        return [finding for finding in self.findings if finding.kind is kind]

    def __str__(self) -> str:
        told = ", ".join(f"{self.told(outcome)} {outcome.value}" for outcome in Outcome)
        unsaid = {Outcome.REFUSED: "run again", Outcome.UNKNOWN: "killed"}
        errors = Counter(
            f"{write.outcome.value}: {write.error or unsaid[write.outcome]}"
            for write in self.writes
            if write.outcome is not Outcome.ACCEPTED
        )
        found = ", ".join(f"{len(self.found(kind))} {kind.value}" for kind in Kind)
        return (
            f"{len({write.operation for write in self.writes})} operations that wrote "
            f"(of the processes that lived: {_listed(self.operations)})\n"
            f"{len(self.writes)} writes: {told} ({_listed(errors)})\n"
            f"{self.faults.total()} faults ({_listed(self.faults)}), {self.killed} killed\n"
            f"{found}"
        )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.most_common())


def run(
    memcached: Memcached,
    folder: Path,
    *,
    seed: int,
    seconds: float,
    processes: int = 4,
    concurrency_mode: str = "optimistic",
    kills: bool = False,
    fencing: bool = True,
) -> Result:
    """Let random programs run, and compare what they were told with what is there in the end.

    Args:
        memcached: for the locks and for ndb's global cache. It is flushed now and then.
        folder: for the notes of the processes.
        seed: of the programs and the faults.
        seconds: for how long operations are begun.
        processes: how many there are at a time.
        concurrency_mode: of the emulator.
        kills: whether processes are killed now and then. The locks of a transaction that one has
            left stay for up to a minute in the pessimistic mode; hardly anything else happens
            meanwhile.
        fencing: whether writes are fenced.

    Raises:
        AssertionError: a process has failed, or does not end.
    """
    config = Config(
        seed=seed,
        url=memcached.url("trial"),
        memcached=(LOOPBACK, memcached.port),
        out=str(folder),
        fencing=fencing,
    )
    with _datastore(concurrency_mode) as faults_url:
        with gathered(config, processes) as crew, Nemesis(faults_url, seed) as nemesis:
            crew.go(seconds)
            if kills:
                _kill_some(crew, Random(f"{seed}/crew"), seconds)
            operations = crew.finish(seconds + _PATIENCE)
        writes = read(crew.notes)
        with ndb.Client().context():
            findings = check(writes, stored_counters(), stored_entries())
    return Result(writes, findings, operations, nemesis.planted, crew.killed)


def _kill_some(crew: Crew, random: Random, seconds: float) -> None:
    """Now and then a process dies, and another takes its place; not at the very end."""
    end = time.monotonic() + seconds
    while time.monotonic() < end - _KILLS_BEFORE_END:
        time.sleep(random.uniform(*_SECONDS_BETWEEN_KILLS))
        crew.kill(random)
        crew.enlist()
        crew.go(end - time.monotonic())


@contextlib.contextmanager
def _datastore(concurrency_mode: str) -> Iterator[str]:
    """An emulator in a process of its own, which clients find; gives where to plant faults."""
    with EmulatorProcess("--concurrency-mode", concurrency_mode) as emulator:
        environment = {
            "DATASTORE_EMULATOR_HOST": emulator.host,
            "GOOGLE_CLOUD_PROJECT": _PROJECT,
        }
        with mock.patch.dict(os.environ, environment):
            yield f"http://{emulator.host}/faults"
