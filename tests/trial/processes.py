"""The whole trial: servers, processes, faults; and what is found in the end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from google.cloud import ndb

from sample_app.stack.ports import LOOPBACK
from tests.contract.emulator.process import EmulatorProcess
from tests.servers import Memcached
from tests.trial.checker import Finding, Kind, check
from tests.trial.models import stored_counters, stored_entries
from tests.trial.nemesis import Nemesis
from tests.trial.record import Outcome, Write, read
from tests.trial.worker import Config

_ROOT = Path(__file__).parents[2]
_PROJECT = "trial"
#: For the last operation of each, and its end.
_PATIENCE = 60.0


@dataclasses.dataclass(frozen=True)
class Result:
    """What has happened.

    Attributes:
        writes: all that were made.
        findings: what is wrong.
        operations: how many ended how, as the processes say.
        faults: how many were planted of each.
    """

    writes: list[Write]
    findings: list[Finding]
    operations: Counter[str]
    faults: Counter[str]

    def told(self, outcome: Outcome) -> int:
        """How many writes were told that."""
        return sum(write.outcome is outcome for write in self.writes)

    def found(self, kind: Kind) -> list[Finding]:
        """What is wrong in that way."""
        return [finding for finding in self.findings if finding.kind is kind]

    def __str__(self) -> str:
        told = ", ".join(f"{self.told(outcome)} {outcome.value}" for outcome in Outcome)
        errors = Counter(
            f"{write.outcome.value}: {write.error or 'run again'}" for write in self.writes
        )
        errors.pop("accepted: run again", None)
        found = ", ".join(f"{len(self.found(kind))} {kind.value}" for kind in Kind)
        return (
            f"{self.operations.total()} operations ({_listed(self.operations)})\n"
            f"{len(self.writes)} writes: {told} ({_listed(errors)})\n"
            f"{self.faults.total()} faults ({_listed(self.faults)})\n"
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
    fencing: bool = True,
) -> Result:
    """Let random programs run, and compare what they were told with what is there in the end.

    Args:
        memcached: for the locks and for ndb's global cache. It is flushed now and then.
        folder: for the notes of the processes.
        seed: of the programs and the faults.
        seconds: for how long operations are begun.
        processes: how many there are.
        concurrency_mode: of the emulator.
        fencing: whether writes are fenced.

    Raises:
        AssertionError: a process has failed, or does not end.
    """
    configs = [
        Config(
            seed=seed,
            process=number,
            url=memcached.url("trial"),
            memcached=(LOOPBACK, memcached.port),
            out=str(folder / f"{number}.jsonl"),
            seconds=seconds,
            fencing=fencing,
        )
        for number in range(processes)
    ]
    with _datastore(concurrency_mode) as control_url:
        operations: Counter[str] = Counter()
        with _workers(configs) as workers, Nemesis(control_url, seed) as nemesis:
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write("\n")
                worker.stdin.flush()
            for worker in workers:
                answer, _ = worker.communicate(timeout=seconds + _PATIENCE)
                assert worker.returncode == 0, "a process has failed"
                operations.update(json.loads(answer))
        writes = read(Path(config.out) for config in configs)
        with ndb.Client().context():
            findings = check(writes, stored_counters(), stored_entries())
    return Result(writes, findings, operations, nemesis.planted)


@contextlib.contextmanager
def _datastore(concurrency_mode: str) -> Iterator[str]:
    """An emulator in a process of its own, which clients find; gives where to plant faults."""
    options = ("--concurrency-mode", concurrency_mode, "--control-port", "0")
    with EmulatorProcess(*options) as emulator:
        assert emulator.process.stdout is not None
        control_url = emulator.process.stdout.readline().strip().partition("=")[2]
        environment = {
            "DATASTORE_EMULATOR_HOST": emulator.host,
            "GOOGLE_CLOUD_PROJECT": _PROJECT,
        }
        with mock.patch.dict(os.environ, environment):
            yield control_url


@contextlib.contextmanager
def _workers(configs: Sequence[Config]) -> Iterator[list[subprocess.Popen[str]]]:
    """A process for each, that is ready to begin; none is left afterwards."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(_worker(config)) for config in configs]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n", "a process did not start"
        yield workers


@contextlib.contextmanager
def _worker(config: Config) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.trial.worker", json.dumps(vars(config))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=_ROOT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
