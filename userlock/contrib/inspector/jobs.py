"""Serve the inspector's pages of jobs: status, lists, one job, redrive and purge.

A question comes before each change. Its form has a token of the jobs that were shown: another site
cannot know it, and if the jobs have changed meanwhile, nothing is done. A request works for a few
seconds; the next one goes on with the jobs that are left.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import logging
import re
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import flask

import userlock.ids as ids
from userlock.admin import jobs as reading
from userlock.admin.jobs import Chosen
from userlock.admin.rendering import Facts, filled, utc
from userlock.clock import Clock
from userlock.contrib.inspector.shared import SHOWN, Answer, Pages, form, is_carried
from userlock.lock.service import LockService
from userlock.outbox import listing
from userlock.outbox.dead_letters import Letter
from userlock.outbox.outbox import Outbox
from userlock.words import counted, escaped, legible, span

log = logging.getLogger(__name__)

#: The bounds of one request.
_MOST_LISTED, _MOST_CHANGED, _MOST_SECONDS = 100, 200, 5.0
#: New dead jobs may come before those that were shown: so many are compared with the token.
_COMPARED = 20

_TOKEN = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})\.[0-9a-f]{64}")


class _Meant(NamedTuple):
    """The dead jobs that a question has shown: one of them, when, and how many there were."""

    chosen: Chosen
    letter: Letter
    wall: float
    number: int

    @property
    def token(self) -> str:
        """Return a token of what the question shows. The stamp in it is known to no other."""
        shown = f"{round(self.wall * 1e6)}.{self.number}"
        chosen, letter = self.chosen, self.letter
        parts = [shown, chosen.key is None, chosen.cause, letter.key, letter.stamp]
        return f"{shown}.{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}"


class JobPages(Pages):
    name, home = "outbox", "jobs"

    def __init__(self, service: Callable[[], LockService], outbox: Outbox) -> None:
        super().__init__(service, outbox.context)
        self._outbox = outbox

    def _clock(self) -> Clock:
        return self._service().clock

    def add_to(self, pages: flask.Blueprint) -> None:
        self.add(pages, "GET", "", "jobs", self._list)
        self.add(pages, "POST", "/find", "find_jobs", self._list)
        self.add(pages, "GET", ".json", "jobs_document", self._document)
        self.add(pages, "GET", "/<key>", "job", lambda key: self._show(key, ""))
        self.add(pages, "POST", "/show", "find_job", lambda: self._show(*form("key", "owner")))
        self.add(pages, "POST", "/redrive", "ask_redrive", lambda: self._ask("redrive"))
        self.add(pages, "POST", "/redrive/now", "redrive", self._redrive)
        self.add(pages, "POST", "/purge", "ask_purge", lambda: self._ask("purge"))
        self.add(pages, "POST", "/purge/now", "purge", self._purge)

    def _list(self) -> str:
        wall = self._clock().wall()
        status = listing.take_status(self._outbox, wall)
        wanted, found = self._search()
        oldest, plain = status.oldest, ids.are_plain()
        rows = [reading.row(each, wall) for each in found.letters]
        return self.render(
            "jobs.html",
            status=status,
            lag=span(status.lag),
            oldest=None if oldest is None else reading.row(oldest, wall),
            why=None if oldest is None else reading.explain(oldest, wall),
            causes=[
                {**row, "name": each.name if is_carried(each.name) else None}
                for row, each in zip(reading.causes(status), status.causes, strict=True)
            ],
            cause_columns=reading.CAUSES,
            rows=rows,
            columns=filled(reading.COLUMNS, rows),
            note=found.note,
            wanted=wanted,
            typed_owner=wanted.owner if plain else "",
        )

    def _document(self) -> Facts:
        wall = self._clock().wall()
        _, found = self._search()
        return {
            "view": "outbox",
            "status": reading.status_facts(listing.take_status(self._outbox, wall)),
            "jobs": [reading.facts(each, wall) for each in found.letters],
            "note": found.note,
        }

    def _search(self) -> tuple[listing.Search, listing.Listing]:
        given = flask.request.values
        texts = {name: given.get(name, "") for name in ("cause", "job", "owner")}
        wanted = listing.Search(dead=given.get("dead", "") == "yes", **texts)
        if any(len(each) > ids.MAX_CHARACTERS for each in texts.values()):
            return listing.Search(), listing.Listing([], "no job has so long a name")
        return wanted, listing.search(self._outbox, wanted, most=_MOST_LISTED)

    def _show(self, key: str, owner: str) -> Answer:
        letter, wall = self._read(key, owner), self._clock().wall()
        return self.render(
            "job.html",
            job=legible(letter.job, SHOWN),
            facts=reading.details(letter, wall, utc),
            key=reading.reference(letter),
            dead=letter.dead,
            why=reading.explain(letter, wall),
        )

    def _read(self, key: str, owner: str) -> Letter:
        letter = reading.read(_key(key, owner))
        if letter is None:
            self.refuse("No such job", "It is done, was purged, or never was.", 404)
        return letter

    def _ask(self, action: str) -> Answer:
        asked = self._question(self._chosen())
        if asked is None:
            return self.message("No dead jobs", "No job is left to redrive or purge.")
        chosen, letter = asked.chosen, asked.letter
        details = reading.details(letter, asked.wall, utc)
        shown = () if chosen.key is None else ("call", "owner", "cause")
        return self.render(
            "dead.html",
            action=action,
            number=asked.number,
            jobs=counted(asked.number, "dead job"),
            most=_MOST_CHANGED,
            facts={label: details[label] for label in shown},
            shown=legible(chosen.cause, SHOWN),
            cause=chosen.cause,
            key=reading.reference(letter),
            token=asked.token,
        )

    def _redrive(self) -> Answer:
        meant = self._meant()
        redriven = meant.chosen.redrive(
            wait_timeout=_MOST_SECONDS,
            stamp=meant.letter.stamp,
            rate=500.0,
            stopped=self._ends(),
            busy_seconds=0.1,
            most=_MOST_CHANGED,
        )
        return self._done("redrive", "redriven", meant.chosen, redriven)

    def _purge(self) -> Answer:
        meant = self._meant()
        (typed,) = form("number")
        if typed.strip().replace(",", "") != str(meant.number):
            text = f"There were {counted(meant.number, 'dead job')}, and you typed another number."
            return self.message("Nothing was purged", text, 409)
        purged, ends = [], self._ends()
        deleted = meant.chosen.purge(died_by=meant.wall, stamp=meant.letter.stamp)
        for each in itertools.islice(deleted, _MOST_CHANGED):
            purged.append(each)
            if ends():
                break
        return self._done("purge", "purged", meant.chosen, purged)

    def _done(self, action: str, word: str, chosen: Chosen, changed: list[bool]) -> Answer:
        """Report for each of the jobs whether it was changed, and ask for those that are left."""
        done, one = sum(changed), chosen.key is not None
        if one and not done:
            self._changed()
        jobs, operator = counted(done, "dead job"), escaped(flask.g.userlock_operator)
        cause = legible(chosen.cause or ("one job" if one else "any cause"), SHOWN)
        log.warning("%s %s by %s, in the inspector (%s)", jobs, word, operator, cause)
        asked = None if one else self._question(chosen)
        return self.render(
            "jobs_done.html",
            action=action,
            title=f"{counted(done, 'job')} {word}",
            skipped=len(changed) - done,
            left=0 if asked is None else asked.number,
            cause=chosen.cause,
            token="" if asked is None else asked.token,
        )

    def _question(self, chosen: Chosen) -> _Meant | None:
        """Return the dead jobs to ask about now; None if there are none."""
        wall = self._clock().wall()
        letters = _died_by(wall, chosen.first())
        return _Meant(chosen, letters[0], wall, chosen.count()) if letters else None

    def _meant(self) -> _Meant:
        """Return the dead jobs that a question has shown, if they are still the same."""
        chosen = self._chosen()
        (token,) = form("token")
        match = _TOKEN.fullmatch(token)
        if match is not None:
            wall, number = int(match[1]) / 1e6, int(match[2])
            for letter in _died_by(wall, chosen.first(_COMPARED)):
                meant = _Meant(chosen, letter, wall, number)
                if hmac.compare_digest(meant.token, token):
                    return meant
        return self._changed()

    def _changed(self) -> NoReturn:
        text = "The dead jobs have changed since you looked. Nothing was done. Look again."
        self.refuse("Dead jobs have changed", text, 409)

    def _chosen(self) -> Chosen:
        key, owner = form("key", "owner")
        if key:
            return Chosen(self._outbox, _key(key, owner))
        if "cause" not in flask.request.form:
            flask.abort(400)
        return Chosen(self._outbox, cause=flask.request.form["cause"])

    def _ends(self) -> Callable[[], bool]:
        clock = self._clock()
        ends = clock.now() + _MOST_SECONDS
        return lambda: clock.now() >= ends


def _key(text: str, owner: str) -> Any:
    try:
        return reading.key_of(text, owner)
    except ValueError:
        flask.abort(404)


def _died_by(wall: float, letters: list[Letter]) -> list[Letter]:
    """Return the jobs that had died by then, to the microsecond that a token carries."""
    return [each for each in letters if each.died_at <= wall + 1e-6]
