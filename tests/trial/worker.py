"""One process of the trial: `python -m tests.trial.worker CONFIG` (JSON).

Says "ready" on its standard output, begins when it reads for how many seconds
it is to begin new operations, and says at its end how many ended how.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import time
import warnings
from pathlib import Path

from google.cloud import ndb
from pymemcache.client.base import Client as MemcacheClient

import userlock
from tests.trial.operations import Worker
from tests.trial.programs import program
from tests.trial.record import Recorder
from userlock.ndb.hooks import transactions


@dataclasses.dataclass(kw_only=True)
class Config:
    """What a process is told.

    Attributes:
        seed: of all programs.
        process: which of them is its own.
        url: of the lease store.
        memcached: host and port of the same server, for ndb's global cache.
        out: where its notes go.
        fencing: whether writes are fenced.
    """

    seed: int
    process: int = 0
    url: str
    memcached: tuple[str, int]
    out: str
    fencing: bool = True


def main() -> None:
    config = Config(**json.loads(sys.argv[1]))
    logging.getLogger("userlock").setLevel(logging.CRITICAL)  # it does what it should not
    # ndb's, of its global cache: it is flushed now and then.
    warnings.filterwarnings("ignore", "Attempt to remove a lock that doesn't exist")
    # There are many faults: what is tried again is tried again soon.
    ndb._retry._DEFAULT_INITIAL_DELAY = 0.01
    ndb._retry._DEFAULT_MAXIMUM_DELAY = 0.05
    transactions._RESEND_DELAYS = (0.01, 0.02, 0.04)
    service = userlock.LockService.from_url(config.url)
    recorder = Recorder(Path(config.out))
    worker = Worker(
        ndb.Client(),
        service,
        MemcacheClient(tuple(config.memcached), timeout=2),
        recorder,
        fencing=config.fencing,
    )
    print("ready", flush=True)
    end = time.monotonic() + float(sys.stdin.readline())
    for operation in program(config.seed, config.process):
        if time.monotonic() > end:
            break
        worker.carry_out(operation)
    service.close()
    recorder.close()
    print(json.dumps(worker.tally), flush=True)


if __name__ == "__main__":
    main()
