"""One process of a run: `python -m tests.chaos.worker CONFIG` (JSON).

It prints "ready", reads the time for which it begins new operations, and begins. The one of the mix
`SETTLER` has no operations: it runs all jobs and completes all requests that are left. On SIGABRT,
which it gets when stuck, it prints its position.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import itertools
import json
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random

from google.api_core.exceptions import GoogleAPICallError
from google.cloud import ndb
from pymemcache.client.base import Client as MemcacheClient

from tests.chaos.desk import Desk
from tests.chaos.garden import Garden
from tests.chaos.gauges import gauged
from tests.chaos.jobs import Jobs, hasten
from tests.chaos.mutations import Mutation, apply
from tests.chaos.operations import Worker
from tests.chaos.programs import MIXES, program
from tests.chaos.record import LOOK_SECONDS, Recorder
from tests.chaos.watched import WallClockOffset, WatchedService
from tests.waiting import wait_until
from userlock import LockService
from userlock.clock import SYSTEM_CLOCK
from userlock.ndb import capabilities, commits
from userlock.stores.urls import open_store

_SECONDS_BETWEEN_GAUGES = 2.0
_CACHE_SECONDS = 0.5
#: The time within which the emulator answers a dozen requests in a row, with any faults.
_EMULATOR_SECONDS = 60.0
#: The mix of the process that does the work that is left.
SETTLER = "settler"
#: A lease store that never answers.
_NOWHERE = "memcache://127.0.0.1:1"
#: The time for which pending releases are retried; longer than a command may take.
_PENDING_SECONDS = 20.0


@dataclasses.dataclass(kw_only=True)
class Config:
    """The configuration of a process.

    Attributes:
        mix: its programs' mix, one of `MIXES`, or `SETTLER`.
        fallback: URL of the fallback store; empty if there is none.
        memcached: host and port of ndb's global cache.
        ports: the ports whose connections are counted: of the servers and the networks.
        homes: the port of each lock's lease server. Empty: Datastore has the leases.
        flush: the command that makes a lease server lose its data.
        skew: the factor for the error of its wall clock.
        ahead: how far the wall clock of its outbox is ahead besides, in seconds.
    """

    seed: str
    name: str = ""
    mix: str = "interactive"
    threads: int = 1
    url: str
    fallback: str = ""
    outage: str = "optimistic"
    memcached: tuple[str, int]
    ports: Sequence[int]
    homes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    flush: str = ""
    out: str
    mutation: str = Mutation.NONE.value
    skew: float = 1.0
    ahead: float = 0.0

    @property
    def notes(self) -> Path:
        """Return the file of the process's records."""
        return Path(self.out) / f"{self.name}.jsonl"

    @property
    def wall_clock(self) -> Path:
        """Return the file with the error of the wall clock, for all processes."""
        return Path(self.out) / "wall-clock-offset"


class _Process:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._recorder = Recorder(config.notes)
        self._service = WatchedService(
            config.url,
            fallback=config.fallback,
            outage=config.outage,
            name=config.name,
            recorder=self._recorder,
            offset=WallClockOffset(config.wall_clock, config.skew),
        )
        self._client = ndb.Client()
        #: Of each thread, and of one that works beside it.
        self._caches = [(self._new_cache(), self._new_cache()) for _ in range(config.threads)]
        self._mix = MIXES.get(config.mix)
        self._jobs = Jobs(
            self._client,
            self._service if self._mix is None or self._mix.locks else self._without_locks(),
            self._recorder,
            Path(config.out),
            config.name,
            config.ahead,
            None if self._mix is None else Random(f"{config.seed}/{config.name}"),
        )
        self._garden = Garden(self._jobs.outbox, Path(config.out))
        self._desk = Desk(
            self._client, self._service, self._recorder, self._jobs, self._config.name
        )

    def _without_locks(self) -> LockService:
        return LockService(open_store(_NOWHERE), clock=self._service.clock)

    def _new_cache(self) -> MemcacheClient:
        return MemcacheClient(tuple(self._config.memcached), timeout=_CACHE_SECONDS)

    def prepare(self) -> None:
        """Have the library check the emulator for fencing: without a reply nothing is sent."""

        def honours() -> bool:
            try:
                return capabilities.honours_base_version(self._client)
            except GoogleAPICallError:  # it starts
                return False

        wait_until(honours, _EMULATOR_SECONDS)

    def run(self, seconds: float) -> None:
        """Begin new operations for this time, and leave nothing behind."""
        if self._mix is None:
            self._jobs.settle()
            self._desk.settle()
            return
        end = time.monotonic() + seconds
        self._gauge("before")
        with ThreadPoolExecutor(self._config.threads + 3) as threads:
            working = [
                threads.submit(self._work, number, caches, end)
                for number, caches in enumerate(self._caches)
            ]
            if self._mix.runs_jobs:
                for act in (self._jobs.deliver, self._jobs.relay, self._desk.complete):
                    working.append(threads.submit(act, lambda: time.monotonic() > end))
            self._look_on(working, seconds)
            for each in working:
                each.result()
        pending_until = time.monotonic() + _PENDING_SECONDS
        while self._service.has_pending_releases and time.monotonic() < pending_until:
            time.sleep(0.1)
        pending = self._service.has_pending_releases
        self._service.close()
        for cache in itertools.chain(*self._caches):
            cache.close()
        self._gauge("after", objects=True, pending=pending)
        self._recorder.close()

    def _look_on(self, working: Sequence[Future[None]], seconds: float) -> None:
        """Record the process's resource usage and pauses."""
        begun = last = SYSTEM_CLOCK.now()
        warm, gauged_at = begun + seconds / 3, begun
        while not all(each.done() for each in working):
            time.sleep(LOOK_SECONDS)
            now = SYSTEM_CLOCK.now()
            if now - last > 2 * LOOK_SECONDS:
                self._recorder.note("starved", who=self._config.name, began=last + LOOK_SECONDS)
            if now - gauged_at > _SECONDS_BETWEEN_GAUGES:
                gauged_at = now
                self._gauge("warm" if warm <= now else "meanwhile", objects=warm <= now)
                warm = math.inf if warm <= now else warm
            last = SYSTEM_CLOCK.now()

    def _work(self, number: int, caches: tuple[MemcacheClient, MemcacheClient], end: float) -> None:
        worker = Worker(
            self._client,
            self._service,
            caches,
            self._recorder,
            self._jobs,
            self._garden,
            self._desk,
            homes=self._config.homes,
            flush=self._config.flush,
            fencing=self._config.mutation != Mutation.FENCING.value,
        )
        performer = f"{self._config.name}.{number}"
        assert self._mix is not None
        for operation in program(self._config.seed, performer, self._mix):
            if time.monotonic() > end:
                break
            worker.carry_out(operation)

    def _gauge(self, when: str, *, objects: bool = False, pending: bool = False) -> None:
        facts = gauged(self._config.ports, objects=objects)
        self._recorder.note("gauge", who=self._config.name, when=when, pending=pending, **facts)


def main() -> None:
    config = Config(**json.loads(sys.argv[1]))
    faulthandler.enable()
    logging.getLogger("userlock").setLevel(logging.CRITICAL)  # its warnings are expected here
    # ndb's, about its global cache, which is flushed, stopped and killed now and then.
    warnings.filterwarnings("ignore", "Attempt to remove a lock that doesn't exist")
    warnings.filterwarnings("ignore", "Error connecting to global cache")
    # There are many faults: retry soon.
    ndb._retry._DEFAULT_INITIAL_DELAY = 0.01
    ndb._retry._DEFAULT_MAXIMUM_DELAY = 0.05
    commits.RESEND_DELAYS = (0.01, 0.02, 0.04)
    hasten()
    apply(Mutation(config.mutation))
    process = _Process(config)
    process.prepare()
    print("ready", flush=True)
    process.run(float(sys.stdin.readline()))
    # Only the renewal thread is left. gRPC may need a minute and more to end without its server,
    # which is not under test here.
    os._exit(0)


if __name__ == "__main__":
    main()
