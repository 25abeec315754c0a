"""The relay: asks the engines again for jobs that are due and still there.

Any number of relays may run. Each works on one shard at a time, under a lease.
The lease is a row, which the transaction of each batch reads and writes: a relay
that was paused, and has lost its lease, cannot commit (`spec/relay.pml`).

    relay A                     lease       relay B
    take it ──────────────────▶ A
    read what is due, wake,
    is paused                               the lease has run out
                                B ◀──────── take it
    push back, if A ──────────▶ refused

Waking comes first: a relay that dies in between leaves jobs that are woken twice.
It deletes nothing.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.clock import Clock
from userlock.ndb.owners import SHARDS, in_namespace, namespaces
from userlock.outbox.rows import RelayRow, due_jobs, has_jobs, relay_key
from userlock.outbox.waking import Due, Waker

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
#: With the lease, a batch has as many entity groups as the oldest mode of Datastore allows.
_BATCH = 24
#: For the messages of a batch, in seconds.
_WAKE_SECONDS = 10.0
#: When a job is looked after again, if it is still there: after a minute, then later and later.
_AGAIN_SECONDS = (60.0, 120.0, 240.0, 480.0, 900.0)
#: The time between two calls of a chore by one relay.
_CHORES_SECONDS = 60.0
#: The pause between two rounds of a relay that runs on: short after work, longer when idle.
IDLE_SECONDS = (1.0, 20.0)


class Relayed(NamedTuple):
    """The work of one round of a relay.

    Attributes:
        woken: the jobs that an engine has taken.
        refused: those that it has not; they stay due.
        shards: the shards whose lease it got.
    """

    woken: int = 0
    refused: int = 0
    shards: int = 0


class _LeaseLost(Exception):
    """Another relay has the shard."""


class Relay:
    """A relay, for one thread: its leases are its own.

    Args:
        outbox: the name of the outbox.
        waker: the engines.
        clock: for all times.
        chores: other functions that are to be called each minute.
    """

    def __init__(
        self,
        outbox: str,
        waker: Waker,
        clock: Clock,
        chores: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._outbox = outbox
        self._waker = waker
        self._clock = clock
        self._chores = chores
        self._token = secrets.token_hex(12)
        self._process = f"{socket.gethostname()}:{os.getpid()}"

    def run_once(self, *, seconds: float = 50.0, shards: Sequence[int] = range(SHARDS)) -> Relayed:
        """Look through all namespaces and shards once, in an ndb context; end after that time.

        Raises:
            GoogleAPIError: Datastore does not answer.
        """
        ends = self._clock.now() + seconds
        woken = refused = worked = 0
        found = namespaces()
        for namespace in random.sample(found, len(found)):
            with in_namespace(namespace):
                if not has_jobs(self._outbox):
                    continue
                for shard in random.sample(list(shards), len(shards)):
                    if self._clock.now() >= ends:
                        return Relayed(woken, refused, worked)
                    took, left, got = self._run_shard(shard, ends)
                    woken, refused, worked = woken + took, refused + left, worked + got
        return Relayed(woken, refused, worked)

    def _run_shard(self, shard: int, ends: float) -> tuple[int, int, bool]:
        """Wake for what is due in a shard. Returns how many were taken and not, and whether this
        relay had the lease."""
        woken = refused = 0
        if not self._due(shard, 1, keys_only=True) or not self._take(shard):
            return 0, 0, False
        try:
            while self._clock.now() < ends:
                took, left, more = self._batch(shard)
                woken, refused = woken + took, refused + left
                if not more or left:
                    break
            self._give_back(shard)
        except _LeaseLost:
            log.info("relay %s has lost shard %d to another one", self._process, shard)
        return woken, refused, True

    def run(self, stopped: Callable[[], bool], context: Callable[[], Any]) -> None:
        """Run on, with pauses when there is nothing to do, until `stopped()`."""
        pause, most = IDLE_SECONDS
        chores_at = self._clock.now()
        while not stopped():
            try:
                with context():
                    relayed = self.run_once()
                    if self._clock.now() >= chores_at:
                        chores_at = self._clock.now() + _CHORES_SECONDS
                        self.do_chores()
            except Exception:
                log.exception("a round of the relay failed")
                relayed = Relayed(refused=1)
            pause = IDLE_SECONDS[0] if relayed.woken else min(2 * pause, most)
            ends = self._clock.now() + pause * random.uniform(0.5, 1)
            while not stopped() and self._clock.now() < ends:
                self._clock.sleep(0.2)

    def do_chores(self) -> None:
        """Call the other functions, in an ndb context."""
        for chore in self._chores:
            try:
                chore()
            except Exception:
                log.exception("a chore of the relay failed")

    # --- a shard ----------------------------------------------------------------------------

    def _due(self, shard: int, most: int, **options: Any) -> list[Any]:
        query = due_jobs(self._outbox, shard, self._now())
        found: list[Any] = query.fetch(most, use_cache=False, use_global_cache=False, **options)
        return found

    def _batch(self, shard: int) -> tuple[int, int, bool]:
        """Wake for a batch, and push it back. Returns how many were taken and not, and if there
        may be more."""
        rows = self._due(shard, _BATCH)
        due = [Due(row.key, row.tier) for row in rows]
        taken = self._waker.wake(due, timeout=_WAKE_SECONDS)
        woken = [row for row, took in zip(rows, taken, strict=True) if took]
        if woken:
            self._push_back(shard, woken)
        return len(woken), len(rows) - len(woken), len(rows) == _BATCH

    def _push_back(self, shard: int, rows: list[Any]) -> None:
        seen = {row.key: row.due for row in rows}

        def push_back() -> None:
            self._renew(shard)
            now = self._now()
            for row in ndb.get_multi(list(seen)):
                if row is None or row.due != seen[row.key]:
                    continue  # it has run meanwhile, or is about to
                again = _AGAIN_SECONDS[min(row.tries, len(_AGAIN_SECONDS) - 1)]
                row.ask_again_at(now + round(again * random.uniform(0.8, 1) * 1e6))
                row.put()

        ndb.transaction(push_back)

    # --- the lease --------------------------------------------------------------------------

    def _take(self, shard: int) -> bool:
        def take() -> bool:
            key = relay_key(self._outbox, shard)
            row = key.get() or RelayRow(key=key)
            if row.token not in ("", self._token) and row.until > self._now():
                return False
            self._write(row, self._now() + round(LEASE_SECONDS * 1e6))
            return True

        taken: bool = ndb.transaction(take)
        return taken

    def _renew(self, shard: int) -> None:
        """Renew the lease in the transaction of a batch, which it guards."""
        row = relay_key(self._outbox, shard).get()
        if row is None or row.token != self._token:
            raise _LeaseLost
        self._write(row, self._now() + round(LEASE_SECONDS * 1e6))

    def _give_back(self, shard: int) -> None:
        def give_back() -> None:
            row = relay_key(self._outbox, shard).get()
            if row is not None and row.token == self._token:
                self._write(row, 0)

        ndb.transaction(give_back)

    def _write(self, row: Any, until: int) -> None:
        row.token = self._token if until else ""
        row.process, row.until = self._process, until
        row.put()

    def _now(self) -> int:
        return round(self._clock.wall() * 1e6)
