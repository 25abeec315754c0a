"""Count and list the jobs of an outbox, for operators and metrics.

`take_status` counts by the indexes of `standing` and `dead`; `search` lists. Both look at all
namespaces, and bound what they read.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.ndb.owners import SHARDS, namespaces, owner_key, shard_query
from userlock.outbox.dead_letters import Letter, letter_of
from userlock.outbox.outbox import Outbox
from userlock.outbox.rows import RUNNING, WAITING, JobRow, dead_jobs, jobs, queued_jobs
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
    """A cause of dead jobs: the job's name and the class of its last error, as it is stored.

    `blocking`: how many of the dead ones hold up their owners' later jobs.
    """

    name: str
    dead: int
    blocking: int


class Status(NamedTuple):
    """An outbox at one moment, in seconds since 1970."""

    wall: float
    due: int  # the jobs that wait and might run
    later: int  # those that wait for their time, or for their next attempt
    running: int  # those that a worker has claimed
    blocked: int  # those of `due` and `later` whose owner has a dead job that holds them up
    causes: list[Cause]  # of the dead ones
    oldest: Letter | None  # the job that has been due for the longest time
    due_since: float | None
    notes: list[str]  # what is not complete

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
        return _take_status(outbox.name, _spaces(options), wall, options)


def _spaces(options: dict[str, Any]) -> list[str]:
    """Return the namespaces that have jobs, of any outbox."""
    found = namespaces()
    queries = [jobs(namespace=each) for each in found]
    asked = [each.fetch_async(1, keys_only=True, **options) for each in queries]
    _wait(asked)
    return [each for each, keys in zip(found, asked, strict=True) if keys.get_result()]


def _standing(
    outbox: str, space: str, standing: str, shard: int | None = None, before: int | None = None
) -> Any:
    """Return a query of the jobs that stand so, by their time; without a shard, of all."""
    prefix = f"{standing}|{outbox}"
    return shard_query(JobRow.standing, JobRow, prefix, shard, before=before, namespace=space)


def _micros_of(standing: str) -> int:
    return int(standing.rpartition("|")[2])


def _take_status(
    outbox: str, spaces: Sequence[str], wall: float, options: dict[str, Any]
) -> Status:
    def count(query: Any) -> Any:
        return query.count_async(_MOST_COUNTED, **options)

    places = list(itertools.product(spaces, range(SHARDS)))
    queries = [_standing(outbox, space, WAITING, shard) for space, shard in places]
    heads = [each.fetch_async(1, projection=["standing"], **options) for each in queries]
    totals = [
        [count(_standing(outbox, space, state)) for space in spaces] for state in (WAITING, RUNNING)
    ]
    distinct: Any = {"projection": ["dead"], "distinct_on": ["dead"]}
    queries = [dead_jobs(outbox, space, **distinct) for space in spaces]
    named = [each.fetch_async(_MOST_CAUSES + 1, **options) for each in queries]
    _wait([*heads, *itertools.chain(*totals), *named])

    now = round(wall * 1e6)
    firsts = [
        (_micros_of(row.standing), place, row.key)
        for place, head in zip(places, heads, strict=True)
        for row in head.get_result()
    ]
    due = [each for each in firsts if each[0] <= now]
    due_counts = [
        count(_standing(outbox, space, WAITING, shard, now + 1)) for _, (space, shard), _ in due
    ]
    oldest = min(due, key=lambda each: each[0], default=None)
    fresh = {"use_cache": False, "use_global_cache": False, **options}
    reads = [] if oldest is None else [oldest[2].get_async(**fresh)]
    found = [
        (row.cause, space)
        for space, rows in zip(spaces, named, strict=True)
        for row in rows.get_result()
    ]
    names = list(dict.fromkeys(name for name, _ in found))
    of_causes = []
    for name, space in found:
        if name in names[:_MOST_CAUSES]:
            query = jobs(JobRow.dead == f"{outbox}|{name}", namespace=space)
            blocking = query.filter(JobRow.queued == outbox)
            keys = blocking.fetch_async(_MOST_BLOCKING + 1, keys_only=True, **options)
            of_causes.append((name, count(query), keys))
    _wait([*due_counts, *reads, *(each for _, *both in of_causes for each in both)])

    dead, holding = Counter[str](), Counter[str]()
    blockers: list[Any] = []
    for name, number, keys in of_causes:
        dead[name] += number.get_result()
        holding[name] += len(keys.get_result())
        blockers += keys.get_result()
    counts = [*due_counts, *itertools.chain(*totals), *(number for _, number, _ in of_causes)]
    notes = []
    if max((each.get_result() for each in counts), default=0) >= _MOST_COUNTED:
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
        causes=[Cause(each, dead[each], holding[each]) for each in names[:_MOST_CAUSES]],
        oldest=next((letter_of(row) for each in reads if (row := each.get_result())), None),
        due_since=None if oldest is None else oldest[0] / 1e6,
        notes=notes,
    )


def _count_blocked(outbox: str, blockers: Sequence[Any], options: dict[str, Any]) -> int:
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
    """The jobs of a list: only dead ones, or those of a cause, of a job's name, or of an owner.

    `cause`: a job's name, or that and the class of its error.
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
        keys = _keys(outbox.name, _spaces({}), wanted, min(most, _MOST_READ))
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


def _keys(outbox: str, spaces: Sequence[str], wanted: Search, most: int) -> Iterator[Any]:
    """Yield the keys of jobs in the order of the list, with others that do not match."""
    if wanted.owner or wanted.dead or wanted.cause:
        for space in spaces:
            query = dead_jobs(outbox, space, wanted.cause or wanted.job)
            if wanted.owner:
                query = jobs(ancestor=owner_key(wanted.owner, space)).order(JobRow.key)
            yield from query.fetch(_MOST_READ + 1, keys_only=True)
        return
    # More than are asked for, as some may go before they are read; all if some do not match.
    of_a_shard = _MOST_READ + 1 if wanted.job else most + _BATCH
    seen = set()  # a job that ran at the first query may wait at the second
    for standing in (RUNNING, WAITING):
        places = itertools.product(spaces, range(SHARDS))
        queries = [_standing(outbox, space, standing, shard) for space, shard in places]
        shards = [each.fetch_async(of_a_shard, projection=["standing"]) for each in queries]
        _wait(shards)
        found = (each.get_result() for each in shards)
        for row in heapq.merge(*found, key=lambda row: _micros_of(row.standing)):
            if row.key not in seen:
                seen.add(row.key)
                yield row.key


def _letters(keys: Iterable[Any]) -> Iterator[Letter]:
    """Yield the rows that are still there, without long arguments, so that a list stays small.

    Few are read at once: each may have a megabyte.
    """
    keys = iter(keys)
    while some := list(itertools.islice(keys, _BATCH)):
        for row in ndb.get_multi(some, use_cache=False, use_global_cache=False):
            if row is not None:
                letter = letter_of(row)
                brief = len(letter.arguments) <= _MOST_ARGUMENTS
                yield letter if brief else letter._replace(arguments=b"")
