"""Count and list the jobs of an outbox, for operators and metrics.

`take_status` counts by the indexes of `standing` and `dead`; `search` lists. Both look at all
namespaces, and bound what they read.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.ndb.owners import SHARDS, namespaces, owner_key
from userlock.outbox.dead_letters import Letter, letter_of
from userlock.outbox.outbox import Outbox
from userlock.outbox.rows import (
    JobRow,
    Standing,
    dead_jobs,
    jobs,
    queued_jobs,
    standing_micros,
    standing_range,
)
from userlock.words import counted

#: How far each query counts.
_MOST_COUNTED = 10_000
_MOST_CAUSES = 100
#: The most dead jobs that hold up others, whose owners are looked at.
_MOST_BLOCKING = 100
#: The most rows that are read to find some: a row may have a megabyte.
_MOST_READ = 2_000
_BATCH = 20
#: Of a listed job, longer arguments are left out. In bytes.
_MOST_ARGUMENTS = 8_000


class Cause(NamedTuple):
    """A cause of dead jobs.

    Attributes:
        name: the job's name and the class of its last error, as it is stored.
        dead: how many have died of it.
        blocking: how many of these hold up their owners' later jobs.
    """

    name: str
    dead: int
    blocking: int


class Status(NamedTuple):
    """An outbox at one moment, in seconds since 1970.

    Attributes:
        due: the jobs that wait and might run.
        later: those that wait for their time, or for their next attempt.
        running: those that a worker has claimed.
        blocked: those of `due` and `later` whose owner has a dead job that holds them up.
        causes: the causes of the dead ones.
        oldest: the job that has been due for the longest time.
        due_since: since when.
        notes: what is not complete.
    """

    wall: float
    due: int
    later: int
    running: int
    blocked: int
    causes: list[Cause]
    oldest: Letter | None
    due_since: float | None
    notes: list[str]

    @property
    def dead(self) -> int:
        return sum(each.dead for each in self.causes)

    @property
    def counts(self) -> dict[str, int]:
        """Return the numbers of jobs by their states."""
        states = ("due", "later", "running", "blocked", "dead")
        return {state: getattr(self, state) for state in states}

    @property
    def lag(self) -> float:
        """Return how long the oldest due job has waited, in seconds; 0 if none is due."""
        return 0.0 if self.due_since is None else max(self.wall - self.due_since, 0.0)


def take_status(outbox: Outbox, wall: float, *, timeout: float | None = None) -> Status:
    """Return the status, by three rounds of small queries."""
    options = {} if timeout is None else {"timeout": timeout}
    with outbox.context():
        return _take_status(outbox.name, _places(outbox, options), wall, options)


class _Place(NamedTuple):
    """The jobs of an outbox in one namespace."""

    outbox: str
    namespace: str

    def jobs(self, *filters: Any, **options: Any) -> Any:
        return jobs(*filters, namespace=self.namespace, **options)

    def standing(
        self, standing: Standing, shard: int | None = None, until: int | None = None
    ) -> Any:
        """Return a query of the jobs that stand so, by their time."""
        first, last = standing_range(self.outbox, standing, shard, until)
        query = self.jobs(JobRow.standing >= first, JobRow.standing < last)
        return query.order(JobRow.standing)

    def dead(self, cause: str = "", **options: Any) -> Any:
        """Return a query of dead jobs of exactly that cause; empty: of all."""
        first = f"{self.outbox}|{cause}"
        if cause:
            return self.jobs(JobRow.dead == first, **options)
        return self.jobs(JobRow.dead >= first, JobRow.dead < f"{self.outbox}}}", **options)


def _places(outbox: Outbox, options: dict[str, Any]) -> list[_Place]:
    """Return the namespaces that have jobs."""
    found = [_Place(outbox.name, each) for each in namespaces()]
    asked = [each.jobs().fetch_async(1, keys_only=True, **options) for each in found]
    _wait(asked)
    return [each for each, keys in zip(found, asked, strict=True) if keys.get_result()]


def _take_status(
    outbox: str, places: Sequence[_Place], wall: float, options: dict[str, Any]
) -> Status:
    firsts = [
        (place, shard, place.standing(Standing.WAITING, shard))
        for place in places
        for shard in range(SHARDS)
    ]
    heads = [query.fetch_async(1, projection=["standing"], **options) for _, _, query in firsts]
    totals = [
        [place.standing(each).count_async(_MOST_COUNTED, **options) for place in places]
        for each in Standing
    ]
    named = [
        place.dead(projection=["dead"], distinct_on=["dead"])
        .order(JobRow.dead)
        .fetch_async(_MOST_CAUSES + 1, **options)
        for place in places
    ]
    _wait([*heads, *itertools.chain(*totals), *named])

    now = round(wall * 1e6)
    due = [
        (standing_micros(row.standing), place, shard, row.key)
        for (place, shard, _), head in zip(firsts, heads, strict=True)
        for row in head.get_result()
        if standing_micros(row.standing) <= now
    ]
    due_counts = [
        place.standing(Standing.WAITING, shard, now).count_async(_MOST_COUNTED, **options)
        for _, place, shard, _ in due
    ]
    found = [
        (row.cause, place)
        for place, rows in zip(places, named, strict=True)
        for row in rows.get_result()
    ]
    names = list(dict.fromkeys(name for name, _ in found))
    causes = [
        (
            name,
            place.dead(name).count_async(_MOST_COUNTED, **options),
            place.dead(name)
            .filter(JobRow.queued == place.outbox)
            .fetch_async(_MOST_BLOCKING + 1, keys_only=True, **options),
        )
        for name, place in found
        if name in names[:_MOST_CAUSES]
    ]
    oldest = min(due, key=lambda each: each[0], default=None)
    reads = (
        []
        if oldest is None
        else [oldest[-1].get_async(use_cache=False, use_global_cache=False, **options)]
    )
    _wait([*due_counts, *reads, *(each for _, *both in causes for each in both)])

    counts = [each.get_result() for each in (*due_counts, *itertools.chain(*totals))]
    together = {name: Cause(name, 0, 0) for name in names[:_MOST_CAUSES]}
    blockers: list[Any] = []
    for name, dead, keys in causes:
        counts.append(dead.get_result())
        blockers += keys.get_result()
        known = together[name]
        together[name] = Cause(
            name, known.dead + dead.get_result(), known.blocking + len(keys.get_result())
        )
    notes = []
    if max(counts, default=0) >= _MOST_COUNTED:
        notes.append(f"each count ends at {_MOST_COUNTED:,}")
    if len(names) > _MOST_CAUSES:
        notes.append(f"there are more than {_MOST_CAUSES} causes")
    if len(blockers) > _MOST_BLOCKING:
        notes.append(f"more than {_MOST_BLOCKING} dead jobs hold up others")
    due_number, waiting, running = (
        sum(each.get_result() for each in futures) for futures in (due_counts, *totals)
    )
    return Status(
        wall=wall,
        due=due_number,
        later=max(waiting - due_number, 0),
        running=running,
        blocked=_count_blocked(outbox, blockers[:_MOST_BLOCKING], options),
        causes=list(together.values()),
        oldest=next((letter_of(row) for each in reads if (row := each.get_result())), None),
        due_since=None if oldest is None else oldest[0] / 1e6,
        notes=notes,
    )


def _count_blocked(outbox: str, blockers: Sequence[Any], options: dict[str, Any]) -> int:
    """Return how many jobs wait behind dead ones."""
    owners = {key.root() for key in blockers}
    counts = [queued_jobs(outbox, each).count_async(_MOST_COUNTED, **options) for each in owners]
    _wait(counts)
    queued: int = sum(each.get_result() for each in counts)
    return max(queued - len(blockers), 0)


def _wait(futures: Sequence[Any]) -> None:
    """Wait for the end of all, whatever it is: ndb complains about those that are left alone."""
    ndb.Future.wait_all(futures)


# --- lists --------------------------------------------------------------------------------------


class Search(NamedTuple):
    """The jobs of a list.

    Attributes:
        dead: only dead ones.
        cause: only dead ones of that cause: a job's name, or that and the class of its error.
        job: only those of that name.
        owner: only those of that owner.
    """

    dead: bool = False
    cause: str = ""
    job: str = ""
    owner: str = ""


class Listing(NamedTuple):
    """Some jobs. `note`: which are missing, and why; empty if none are."""

    letters: list[Letter]
    note: str


def search(outbox: Outbox, wanted: Search, *, most: int = 100) -> Listing:
    """List jobs: dead ones by cause, others by time (first those that run), an owner's in order."""
    with outbox.context():
        keys = _keys(_places(outbox, {}), wanted, min(most, _MOST_READ))
        found: list[Letter] = []
        note = ""
        for number, letter in enumerate(_letters(keys)):
            if number >= _MOST_READ:
                note = f"only the first {_MOST_READ:,} jobs were looked at"
                break
            if _matches(letter, wanted):
                if len(found) >= most:
                    note = f"there are more than {counted(most, 'job')}"
                    break
                found.append(letter)
        if wanted.owner:
            found.sort(key=lambda letter: letter.rank)
        return Listing(found, note)


def _matches(letter: Letter, wanted: Search) -> bool:
    if wanted.job and letter.job != wanted.job:
        return False
    if wanted.owner and letter.owner != wanted.owner:
        return False
    if wanted.cause:
        return f"{letter.cause} ".startswith(f"{wanted.cause} ")
    return letter.dead or not wanted.dead


def _keys(places: Sequence[_Place], wanted: Search, most: int) -> Iterator[Any]:
    """Yield the keys of jobs in the order of the list, with others that do not match."""
    if wanted.owner:
        for each in places:
            rows = each.jobs(ancestor=owner_key(wanted.owner, each.namespace)).order(JobRow.key)
            yield from rows.fetch(_MOST_READ + 1, keys_only=True)
        return
    if wanted.dead or wanted.cause:
        for each in places:
            query = dead_jobs(each.outbox, each.namespace, wanted.cause or wanted.job)
            yield from query.fetch(_MOST_READ + 1, keys_only=True)
        return
    # More than are asked for, as some may go before they are read; all if some do not match.
    of_a_shard = _MOST_READ + 1 if wanted.job else most + _BATCH
    seen = set()  # a job that ran at the first query may wait at the second
    for standing in (Standing.RUNNING, Standing.WAITING):
        shards = [
            each.standing(standing, shard).fetch_async(of_a_shard, projection=["standing"])
            for each in places
            for shard in range(SHARDS)
        ]
        _wait(shards)
        merged = heapq.merge(
            *(
                [(standing_micros(row.standing), index, row.key) for index, row in enumerate(rows)]
                for rows in (each.get_result() for each in shards)
            ),
            key=lambda each: each[:2],
        )
        for _, _, key in merged:
            if key not in seen:
                seen.add(key)
                yield key


def _letters(keys: Iterable[Any]) -> Iterator[Letter]:
    """Yield the rows that are still there. Few are read at once: each may have a megabyte."""
    keys = iter(keys)
    while some := [key for _, key in zip(range(_BATCH), keys, strict=False)]:
        rows = ndb.get_multi(some, use_cache=False, use_global_cache=False)
        yield from (_brief(letter_of(row)) for row in rows if row is not None)


def _brief(letter: Letter) -> Letter:
    """Return a letter without long arguments, so that a list of them stays small."""
    if len(letter.arguments) <= _MOST_ARGUMENTS:
        return letter
    return letter._replace(arguments=b"")
