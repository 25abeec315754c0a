"""Read an outbox for operators: its status, lists of jobs, and jobs as documents.

Under `userlock outbox` and the inspector. All texts that come from rows (owners,
arguments, errors, names) are escaped and bounded here. If lock ids are hidden
(`userlock.configure(show_ids=…)`), so are owners and the first argument of calls; and
keys, which contain the owner: a job is then named by the rest of its key, and is found
with the owner's id.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from google.cloud import ndb

import userlock.ids as ids
from userlock.admin.rendering import Column, Facts, Moment, Write, labelled
from userlock.ndb.owners import SHARDS, namespaces, owner_key
from userlock.outbox.arguments import decode
from userlock.outbox.dead_letters import Letter, letter_of
from userlock.outbox.outbox import Outbox, job_key
from userlock.outbox.rows import (
    MOST_ERROR,
    JobRow,
    Standing,
    dead_jobs,
    jobs,
    queued_jobs,
    standing_micros,
    standing_range,
)
from userlock.words import counted, legible, span

#: How far each query counts.
_MOST_COUNTED = 10_000
_MOST_CAUSES = 100
#: The most dead jobs that hold up others, whose owners are looked at.
_MOST_BLOCKING = 100
#: The most rows that are read to find some: a row may have a megabyte.
_MOST_READ = 2_000
_BATCH = 20
#: The rows of one owner that are looked at.
_MOST_OF_OWNER = 200

#: How much is shown of a call, and of the names in a row, in characters.
_SHOWN_CALL = 2_000
_SHOWN_NAME = 300
_NAME = re.compile(r"[0-9a-f]{24,64}")

#: The columns of a list of jobs.
COLUMNS = (
    Column("state", "State"),
    Column("for", "For", "duration"),
    Column("attempts", "Tries", "count"),
    Column("owner", "Owner", "code"),
    Column("job", "Job", "code", 60),
    Column("key", "Key", "code"),
)
#: The labels of one job, in their order.
_LABELS = (
    *("call", "owner", "namespace", "key", "state", "staged", "ready", "attempts", "tier"),
    *("cause", "died", "blocks", "first error", "last error"),
)
#: The columns of the causes of dead jobs.
CAUSES = (
    Column("dead", "Dead", "count"),
    Column("blocking", "Blocking", "count"),
    Column("cause", "Cause", "code"),
)


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

    @property
    def facts(self) -> Facts:
        """Return it as a document, and as a row of `CAUSES`."""
        shown = legible(self.name, _SHOWN_NAME)
        return {"cause": shown, "dead": self.dead, "blocking": self.blocking}


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
    """Return the status, by three rounds of small queries.

    Args:
        outbox: the outbox.
        wall: the time, in seconds since 1970.
        timeout: of each query, in seconds.

    Raises:
        DATASTORE_ERRORS: Datastore does not answer.
    """
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
    reads = [] if oldest is None else [_get_async(oldest[-1], options)]
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


def _get_async(key: Any, options: dict[str, Any]) -> Any:
    return key.get_async(use_cache=False, use_global_cache=False, **options)


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
    """List jobs: dead ones by cause, others by time (first those that run), an owner's in order.

    Raises:
        DATASTORE_ERRORS: Datastore does not answer.
    """
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
    if len(letter.arguments) <= _SHOWN_CALL * 4:
        return letter
    return letter._replace(arguments=b"")


# --- one job ------------------------------------------------------------------------------------


def key_of(text: str, owner: str = "") -> Any:
    """Return the key of a job, in an ndb context.

    Args:
        text: the key as text; or, with its owner, the job's part of it (`reference`).
        owner: the owner's id.

    Raises:
        ValueError: the text names no job.
    """
    if _NAME.fullmatch(text):
        if not owner:
            raise ValueError(f"{text} is a part of a key: the owner's id is needed with it")
        keys = [ndb.Key(JobRow, text, parent=owner_key(owner, each)) for each in namespaces()]
        rows = ndb.get_multi(keys, use_cache=False, use_global_cache=False)
        there = [key for key, row in zip(keys, rows, strict=True) if row is not None]
        return (there or keys or [ndb.Key(JobRow, text, parent=owner_key(owner))])[0]
    return job_key(text)


def reference(letter: Letter) -> str:
    """Return the key of a job for people; if lock ids are hidden, the part without the owner."""
    return letter.key if ids.are_plain() else str(job_key(letter.key).id())


def read(key: Any) -> Letter | None:
    """Return a job, or None if there is none. In an ndb context.

    Raises:
        DATASTORE_ERRORS: Datastore does not answer.
    """
    row = _get_async(key, {}).get_result()
    return None if row is None else letter_of(row)


class Why(NamedTuple):
    """Why a job does not run at this moment, in a sentence; `by`: a reference to another job."""

    text: str
    by: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.by})" if self.by else self.text


def explain(letter: Letter, wall: float) -> Why:
    """Return why a job does not run at this moment, or that it does. In an ndb context.

    Raises:
        DATASTORE_ERRORS: Datastore does not answer.
    """
    if letter.dead:
        return Why("It is dead: it runs again if it is redriven.")
    if letter.running:
        return Why("A worker has claimed it. If that worker has died, another one takes it over.")
    if letter.delayed and letter.ready_at > wall:
        when = span(letter.ready_at - wall)
        failed = f", after {counted(letter.attempts, 'failure')}" if letter.attempts else ""
        return Why(f"It is not due: it may run in {when}{failed}.")
    earlier = _holding_up(letter)
    if earlier is not None:
        state = "has failed, and runs again later"
        if earlier.claim:
            state = "is running"
        if earlier.dead is not None:
            state = "is dead"
        name = reference(letter_of(earlier))
        return Why(f"An earlier job of its owner holds it up, which {state}.", name)
    return Why(f"It has been due for {span(wall - letter.ready_at)}, and waits for a worker.")


def _holding_up(letter: Letter) -> Any:
    """Return the row that holds up a due one, by the rules of `worker.py`; None if none does."""
    key = job_key(letter.key)
    rows = queued_jobs(letter.outbox, key.root()).fetch(
        _MOST_OF_OWNER, use_cache=False, use_global_cache=False
    )
    rows = sorted(rows, key=lambda row: row.rank)
    own = next((row for row in rows if row.key == key), None)
    for row in [] if own is None else rows[: rows.index(own)]:
        if row.attempts or row.first_error is not None or row.dead is not None:
            return row
    return None


# --- dead jobs that are changed -----------------------------------------------------------------


class Chosen(NamedTuple):
    """The dead jobs that an operator means: one by its key, or those of a cause; empty for all.

    Its functions run in an ndb context.
    """

    outbox: Outbox
    key: Any = None
    cause: str = ""

    def count(self, most: int = 100_000) -> int:
        """Return how many there are, counted up to `most`."""
        if self.key is None:
            return self.outbox.dead.count(self.cause, most=most)
        return len(self.first())

    def first(self, most: int = 1) -> list[Letter]:
        """Return the first of them."""
        if self.key is None:
            return self.outbox.dead.list(self.cause, most=most)
        letter = read(self.key)
        return [] if letter is None or not letter.dead else [letter]

    def redrive(
        self, *, wait_timeout: float, stamp: int | None = None, **options: Any
    ) -> Iterator[bool]:
        """Redrive them; yield for each whether it was.

        Args:
            wait_timeout: the longest wait for the owner of one.
            stamp: of one, as in `DeadLetters.redrive`.
            options: of many, as in `DeadLetters.redrive_all`.
        """
        if self.key is None:
            for _, redriven in self.outbox.dead.redrive_all(self.cause, **options):
                yield redriven
        else:
            yield self.outbox.dead.redrive(self.key, wait_timeout=wait_timeout, stamp=stamp)

    def purge(self, *, died_by: float, stamp: int | None = None) -> Iterator[bool]:
        """Delete those that had died by then; yield for each whether it was. One: by its stamp."""
        if self.key is None:
            for _ in self.outbox.dead.purge(self.cause, died_by=died_by):
                yield True
        else:
            yield self.outbox.dead.delete(self.key, stamp=stamp)


# --- as documents -------------------------------------------------------------------------------


def state_of(letter: Letter, wall: float) -> str:
    """Return the state of a job in one word."""
    if letter.dead:
        return "dead"
    if letter.running:
        return "running"
    return "later" if letter.delayed and letter.ready_at > wall else "due"


def call_of(letter: Letter) -> str:
    """Return the call, escaped and bounded. If lock ids are hidden, without the first argument."""
    name = legible(letter.job, _SHOWN_NAME)
    try:
        args, kwargs = decode(letter.arguments)
    except ValueError:
        return f"{name}(…)"
    parts = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    if not ids.are_plain():
        # By position, the owner is the first one.
        for index, value in enumerate([*args, *kwargs.values()]):
            if (index == 0 and args) or str(value) == letter.owner:
                parts[index] = ids.show(letter.owner)
    return legible(f"{name}({without_owner(letter.owner, ', '.join(parts))})", _SHOWN_CALL)


def without_owner(owner: str, text: str) -> str:
    """Return a text without its owner's id, if ids are hidden and it is long enough to tell."""
    if ids.are_plain():
        return text
    for form in {owner, repr(owner)[1:-1]}:
        if len(form) > 2:
            text = text.replace(form, ids.show(owner))
    return text


def facts(letter: Letter, wall: float) -> Facts:
    """Return the facts about a job, with all that its document has."""
    late = None if letter.dead or letter.running else max(wall - letter.ready_at, 0.0)
    return {
        "key": letter.key if ids.are_plain() else None,
        "name": str(job_key(letter.key).id()),
        "namespace": letter.namespace,
        "owner": ids.exact(letter.owner),
        "job": legible(letter.job, _SHOWN_NAME),
        "call": call_of(letter),
        "state": state_of(letter, wall),
        "tier": legible(letter.tier, _SHOWN_NAME),
        "attempts": letter.attempts,
        "redriven": letter.redriven,
        "staged": Moment(letter.staged_at),
        "ready": Moment(letter.ready_at),
        "late_seconds": late,
        "cause": legible(letter.cause, _SHOWN_NAME) or None,
        "died": Moment(letter.died_at) if letter.dead else None,
        "blocks": letter.blocks,
        "first_error": _error(letter, letter.first_error, letter.first_error_at),
        "last_error": _error(letter, letter.last_error, letter.last_error_at),
    }


def _error(letter: Letter, text: str, at: float) -> Facts | None:
    if not at:
        return None
    shown = legible(without_owner(letter.owner, text), MOST_ERROR)
    return {"text": shown, "at": Moment(at)}


def row(letter: Letter, wall: float) -> Facts:
    """Return a job as a row of `COLUMNS`."""
    found = facts(letter, wall)
    since = {"dead": letter.died_at, "due": letter.ready_at, "later": letter.ready_at}
    at = since.get(found["state"])
    later = "in " if found["state"] == "later" else ""
    return {
        **found,
        "for": "" if at is None else later + span(abs(wall - at)),
        "owner": ids.show(letter.owner),
        "job": found["cause"] or found["job"],
        "key": reference(letter),
    }


def details(letter: Letter, wall: float, write: Write) -> dict[str, str]:
    """Return all about a job by labels, in words."""
    found = {**facts(letter, wall), "owner": ids.show(letter.owner), "key": reference(letter)}
    if letter.redriven:
        found["attempts"] = f"{letter.attempts}, after {counted(letter.redriven, 'redrive')}"
    if letter.last_error_at == letter.first_error_at:
        found["last_error"] = None
    blocks = "its owner's later jobs wait until it is redriven or purged"
    found["blocks"] = blocks if letter.blocks else None
    return labelled(found, _LABELS, write)


def status_facts(status: Status) -> Facts:
    """Return the facts about a status, as its document has them."""
    oldest = status.oldest
    return {
        "at": Moment(status.wall),
        **status.counts,
        "lag_seconds": status.lag,
        "oldest": None if oldest is None else facts(oldest, status.wall),
        "causes": [each.facts for each in status.causes],
        "complete": not status.notes,
        "notes": status.notes,
    }
