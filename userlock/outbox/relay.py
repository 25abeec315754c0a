"""The relay: asks the engines again for jobs that are due and still there.

Any number of relays may run. Each works on one shard at a time, under a lease, which saves
messages: the rows are right without it (`spec/relay.pml`). Each write builds on what was read:

    relay A                     job, lease    relay B
    take the lease ───────────▶ A
    read what is due, wake,
    is paused                                 the lease has run out
                                B ◀────────── take it; wake, push back
    push back ────────────────▶ refused

Waking comes first: a relay that dies in between leaves jobs that are woken twice. It deletes none.

Shards take turns, in random order, and those of all namespaces: one user with many jobs, or one
tenant, holds up no other shard for longer than a turn. In its own shard a user has a share of each
round, and the rest is passed over by its keys alone. What no engine takes stays due, and does not
keep a turn from what is behind it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import random
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from google.api_core.exceptions import GoogleAPIError
from google.cloud import ndb

from userlock.clock import Clock
from userlock.errors import StaleWriteError
from userlock.ndb.direct import swap
from userlock.ndb.owners import SHARDS, in_namespace, micros_now, namespaces
from userlock.ndb.transactions import call_to_end, failure_text, is_conflict
from userlock.outbox.rows import RelayRow, due_jobs, flaw_of, has_jobs, report
from userlock.outbox.waking import Due, Waker

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
#: The jobs that are read, woken and pushed back together.
_BATCH = 24
#: But if they are longer, in bytes, so few are: Datastore takes 10 MiB in a commit.
_LONG, _FEW = 8 * 2**20, 8
#: The batches of a shard before the others have their turn.
_TURN = 4
#: The jobs of one owner that are asked for in a round. Each message runs later ones, too.
_SHARE = 20 * _BATCH
#: For the messages of a batch, in seconds.
_WAKE_SECONDS = 10.0
#: When a job is looked after again, if it is still there: after a minute, then later and later.
_AGAIN_SECONDS = (60.0, 120.0, 240.0, 480.0, 900.0)
#: The time between two calls of a chore by one relay.
_CHORES_SECONDS = 60.0
#: The pause between two rounds of a relay that runs on: short after work, longer when idle.
IDLE_SECONDS = (1.0, 20.0)
#: The malformed rows that a relay remembers.
_MOST_REPORTED = 1_000
#: Of rows that others change.
_FRESH: Any = {"use_cache": False, "use_global_cache": False}


class Relayed(NamedTuple):
    """The work of one round of a relay."""

    woken: int = 0  # the jobs that an engine has taken
    refused: int = 0  # those that it has not; they stay due
    shards: int = 0  # the shards whose lease it got


class _LeaseLost(Exception):
    """Another relay has the shard."""


@dataclasses.dataclass
class Relay:
    """A relay, for one thread: its leases are its own."""

    outbox: str
    waker: Waker
    clock: Clock
    chores: Sequence[Callable[[], None]] = ()

    def __post_init__(self) -> None:
        self._token = secrets.token_hex(12)
        self._report = functools.lru_cache(_MOST_REPORTED)(report)  # each once

    def run_once(self, *, seconds: float = 50.0) -> Relayed:
        """Look through all namespaces and shards once, in an ndb context; end after that time."""
        ends = self.clock.now() + seconds
        #: Of this round: the jobs of each owner that were asked for, and the leases.
        self._asked = collections.Counter[Any]()
        self._leases: set[Any] = set()
        self._woken = self._refused = 0
        now, found = micros_now(self.clock), namespaces()  # (a cursor is for one query)
        #: A namespace, a shard of it, and where in that; first the namespaces alone.
        turns: collections.deque[tuple[str, int | None, Any]] = collections.deque(
            (each, None, None) for each in random.sample(found, len(found))
        )
        while turns and self.clock.now() < ends:
            namespace, shard, cursor = turns.popleft()
            with in_namespace(namespace):
                if shard is not None:
                    cursor = self._run_shard(due_jobs(self.outbox, shard, now), shard, cursor, ends)
                    if cursor is not None:
                        turns.append((namespace, shard, cursor))
                elif has_jobs(self.outbox):
                    own = random.sample(range(SHARDS), SHARDS)
                    turns.extendleft((namespace, each, None) for each in own)
        return Relayed(self._woken, self._refused, len(self._leases))

    def _run_shard(self, jobs: Any, shard: int, cursor: Any, ends: float) -> Any:
        """Wake for some of what is due in a shard; return a cursor behind it, or None at the end.

        Also None if another relay has the lease.
        """
        lease = self._take(shard) if jobs.get(keys_only=True, **_FRESH) else None
        if lease is None:
            return None
        self._leases.add(lease.key)
        try:
            for _ in range(_TURN):
                cursor = self._batch(jobs, lease, cursor)
                if cursor is None or self.clock.now() >= ends:
                    break
            self._give_back(lease)
        except _LeaseLost:
            log.info("this relay has lost shard %d to another one", shard)
            return None
        return cursor

    def run(self, stopped: Callable[[], bool], context: Callable[[], Any]) -> None:
        pause, most = IDLE_SECONDS
        chores_at = self.clock.now()
        while not stopped():
            try:
                with context():
                    relayed = self.run_once()
                    if self.clock.now() >= chores_at:
                        chores_at = self.clock.now() + _CHORES_SECONDS
                        self.do_chores()
            except Exception:
                log.exception("a round of the relay failed")
                relayed = Relayed(refused=1)
            pause = IDLE_SECONDS[0] if relayed.woken else min(2 * pause, most)
            ends = self.clock.now() + pause * random.uniform(0.5, 1)
            while not stopped() and self.clock.now() < ends:
                self.clock.sleep(0.2)

    def do_chores(self) -> None:
        for chore in self.chores:
            try:
                call_to_end(chore)
            except Exception:
                log.exception("a chore of the relay failed")

    def _batch(self, jobs: Any, lease: Any, start: Any) -> Any:
        """Wake for a batch, and push it back; return the cursor behind it, or None at the end."""
        if max(self._asked.values(), default=0) >= _SHARE:
            start, more = self._behind_full_shares(jobs, start)
            if not more:
                return None
        rows, cursor, more = jobs.fetch_page(_BATCH, start_cursor=start, **_FRESH)
        rows = [row for row in rows if self._has_share(row.key) and self._is_whole(row)]
        due = [Due(row.key, row.tier) for row in rows]
        taken = self.waker.wake(due, timeout=_WAKE_SECONDS)
        woken = [row for row in rows if row.key in taken]
        self._asked.update(_owner(row.key) for row in woken)
        if woken:
            woken = woken[: self._push_back(lease, woken)]
        elif rows and len(self.waker.engines) == 1:
            more = False  # it takes none now
        self._woken += len(woken)
        self._refused += len(rows) - len(woken)
        return cursor if more else None

    def _is_whole(self, row: Any) -> bool:
        """Return whether a row is not malformed: the others do not wait for its repair."""
        flaw = flaw_of(row)
        if flaw:
            self._report(row.key, "asked for", flaw)
        return not flaw

    def _has_share(self, key: Any) -> bool:
        return self._asked[_owner(key)] < _SHARE

    def _behind_full_shares(self, jobs: Any, cursor: Any) -> tuple[Any, bool]:
        """Return a cursor before the next job whose owner has a share left, and whether it is."""
        keys = jobs.iter(keys_only=True, start_cursor=cursor, **_FRESH)
        for key in keys:
            if self._has_share(key):
                return cursor, True
            cursor = keys.cursor_after()
        return cursor, False

    def _push_back(self, lease: Any, rows: list[Any]) -> int:
        """Renew the lease, and let the jobs be looked after later, up to contention at some.

        Return how many are.
        """
        now = micros_now(self.clock)
        for row in rows:
            again = _AGAIN_SECONDS[min(row.tries, len(_AGAIN_SECONDS) - 1)]
            row.ask_again_at(now + round(again * random.uniform(0.8, 1) * 1e6))
        self._note_lease(lease, now + round(LEASE_SECONDS * 1e6))
        together = len(rows) if sum(len(row.data or b"") for row in rows) <= _LONG else _FEW
        try:
            for first in range(0, len(rows), together):
                # A job that has run meanwhile, or will now, is not pushed back.
                renewed, *_ = swap([lease, *rows[first : first + together]])
                if not renewed:
                    raise _LeaseLost
        except GoogleAPIError as error:
            if not is_conflict(error):
                raise
            log.warning("%d jobs stay due: %s", len(rows) - first, failure_text(error))
            return first
        return len(rows)

    def _take(self, shard: int) -> Any:
        """Return the row of a shard's lease, which this relay has now; None: another one has it."""
        key = ndb.Key(RelayRow, f"{self.outbox}|{shard:02d}")
        row = key.get(**_FRESH) or RelayRow(key=key)
        now = micros_now(self.clock)
        if row.token not in ("", self._token) and row.until > now:
            return None
        self._note_lease(row, now + round(LEASE_SECONDS * 1e6))
        try:
            row.put(**_FRESH)
        except StaleWriteError:
            return None
        return row

    def _give_back(self, lease: Any) -> None:
        self._note_lease(lease, 0)
        with contextlib.suppress(StaleWriteError):
            lease.put(**_FRESH)

    def _note_lease(self, row: Any, until: int) -> None:
        row.token, row.until = self._token if until else "", until


def _owner(key: Any) -> tuple[str, str]:
    return key.namespace() or "", key.flat()[1]
