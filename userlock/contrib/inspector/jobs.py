"""Serve the inspector's pages of jobs: status, lists, one job, redrive and purge.

A question comes before each change. Its form has a token of the jobs that were shown:
another site cannot know it, and if the jobs have changed meanwhile, nothing is done.
A request works for a few seconds; the next one goes on with the jobs that are left.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import logging
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import flask

import userlock.ids as ids
from userlock.admin import jobs as reading
from userlock.admin.tables import utc
from userlock.clock import Clock
from userlock.contrib.inspector.shared import Answer, Pages, Render, is_carried
from userlock.outbox.dead_letters import Letter
from userlock.outbox.outbox import Outbox
from userlock.words import counted, escaped, legible, span

log = logging.getLogger(__name__)

#: The bounds of one request.
_MOST_LISTED = 100
_MOST_CHANGED = 200
_MOST_SECONDS = 5.0
_RATE = 500.0
_BUSY_SECONDS = 0.1
#: New dead jobs may come before those that were shown: so many are compared with the token.
_COMPARED = 20
_SHOWN = 300

_TOKEN = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})\.[0-9a-f]{64}")


class _Choice(NamedTuple):
    """The dead jobs that a form names: one by its key, or those of a cause; empty for all."""

    key: Any = None
    cause: str = ""


class _Meant(NamedTuple):
    """The dead jobs that a question has shown.

    Attributes:
        choice: which.
        letter: one of them.
        wall: the time, in seconds since 1970.
        number: how many there were.
    """

    choice: _Choice
    letter: Letter
    wall: float
    number: int


class JobPages(Pages):
    """The functions of the pages.

    Args:
        outbox: the app's outbox.
        clock: returns the clock.
        render: renders a template.
    """

    def __init__(self, outbox: Outbox, clock: Callable[[], Clock], render: Render) -> None:
        super().__init__("outbox", "jobs", outbox.context, render)
        self._outbox = outbox
        self._clock = clock

    def add_to(self, pages: flask.Blueprint) -> None:
        """Add the routes."""
        self.add(pages, "GET", "", "jobs", self._list)
        self.add(pages, "POST", "/find", "find_jobs", self._list)
        self.add(pages, "GET", ".json", "jobs_document", self._document)
        self.add(pages, "GET", "/<key>", "job", lambda key: self._show(key, ""))
        self.add(pages, "GET", "/<key>.json", "job_document", self._show_document)
        self.add(pages, "POST", "/show", "find_job", self._find)
        self.add(pages, "POST", "/redrive", "ask_redrive", lambda: self._ask("redrive"))
        self.add(pages, "POST", "/redrive/now", "redrive", self._redrive)
        self.add(pages, "POST", "/purge", "ask_purge", lambda: self._ask("purge"))
        self.add(pages, "POST", "/purge/now", "purge", self._purge)

    # --- views --------------------------------------------------------------------------------

    def _list(self) -> str:
        wall = self._clock().wall()
        status = reading.take_status(self._outbox, wall)
        wanted, found = self._search()
        oldest = status.oldest
        return self.render(
            "jobs.html",
            status=status,
            figures={
                name: getattr(status, name)
                for name in ("due", "later", "running", "blocked", "dead")
            },
            lag=span(status.lag),
            oldest=None if oldest is None else reading.row(oldest, wall),
            why=None if oldest is None else reading.explain(oldest, wall),
            causes=[
                {**each.facts, "name": each.name if is_carried(each.name) else None}
                for each in status.causes
            ],
            cause_columns=reading.CAUSES,
            rows=[reading.row(each, wall) for each in found.letters],
            columns=[each for each in reading.COLUMNS if each.key != "key" or not ids.are_plain()],
            note=found.note,
            wanted=wanted,
            typed_owner=wanted.owner if ids.are_plain() else "",
            plain=ids.are_plain(),
        )

    def _document(self) -> flask.Response:
        wall = self._clock().wall()
        _, found = self._search()
        return flask.jsonify(
            view="outbox",
            status=reading.status_facts(reading.take_status(self._outbox, wall)),
            jobs=[reading.job_facts(each, wall) for each in found.letters],
            note=found.note,
        )

    def _search(self) -> tuple[reading.Search, reading.Listing]:
        given = flask.request.values
        wanted = reading.Search(
            dead=given.get("dead", "") == "yes",
            cause=given.get("cause", ""),
            job=given.get("job", ""),
            owner=given.get("owner", ""),
        )
        if any(len(each) > ids.MAX_CHARACTERS for each in wanted if isinstance(each, str)):
            return reading.Search(), reading.Listing([], "no job has so long a name")
        return wanted, reading.search(self._outbox, wanted, most=_MOST_LISTED)

    def _find(self) -> Answer:
        form = flask.request.form
        return self._show(form.get("key", ""), form.get("owner", ""))

    def _show(self, key: str, owner: str) -> Answer:
        letter = reading.read(_key(key, owner))
        if letter is None:
            text = "It is done, was purged, or never was."
            return self.message("No such job", text), 404
        wall = self._clock().wall()
        return self.render(
            "job.html",
            job=legible(letter.job, _SHOWN),
            facts={"call": reading.call_of(letter), **reading.details(letter, wall, utc)},
            key=reading.reference(letter),
            dead=letter.dead,
            why=reading.explain(letter, wall),
            plain=ids.are_plain(),
        )

    def _show_document(self, key: str) -> Any:
        wall = self._clock().wall()
        letter = reading.read(_key(key, ""))
        if letter is None:
            flask.abort(404)
        facts = reading.job_facts(letter, wall)
        return flask.jsonify(**facts, why=str(reading.explain(letter, wall)))

    # --- changes ------------------------------------------------------------------------------

    def _ask(self, action: str) -> Answer:
        """Show the dead jobs that are meant, and what the action means for them."""
        choice = self._choice()
        wall = self._clock().wall()
        letters = self._first(choice, wall)
        if not letters:
            return self.message("No dead jobs", "Nobody is left to redrive or purge."), 200
        number = 1 if choice.key is not None else self._outbox.dead.count(choice.cause)
        one = letters[0] if choice.key is not None else None
        return self.render(
            "dead.html",
            action=action,
            number=number,
            jobs=counted(number, "dead job"),
            most=_MOST_CHANGED,
            facts={} if one is None else self._briefly(one, wall),
            shown=legible(choice.cause, _SHOWN),
            cause=choice.cause,
            key="" if one is None else reading.reference(one),
            token=_token(choice, letters[0], wall, number),
            plain=ids.are_plain(),
        )

    @staticmethod
    def _briefly(letter: Letter, wall: float) -> dict[str, str]:
        details = reading.details(letter, wall, utc)
        return {
            "call": reading.call_of(letter),
            **{name: details[name] for name in ("owner", "cause")},
        }

    def _redrive(self) -> Answer:
        meant = self._meant()
        if meant is None:
            return self._changed()
        choice, dead, done, skipped = meant.choice, self._outbox.dead, 0, 0
        if choice.key is not None:
            stamp = meant.letter.stamp
            if not dead.redrive(choice.key, wait_timeout=_MOST_SECONDS, stamp=stamp):
                return self._changed()
            done = 1
        else:
            each = dead.redrive_all(
                choice.cause,
                rate=_RATE,
                stopped=self._ends(),
                busy_seconds=_BUSY_SECONDS,
                most=_MOST_CHANGED,
            )
            for _, redriven in each:
                done, skipped = done + redriven, skipped + (not redriven)
        return self._done("redrive", "redriven", choice, done, skipped)

    def _purge(self) -> Answer:
        meant = self._meant()
        if meant is None:
            return self._changed()
        choice, dead, done = meant.choice, self._outbox.dead, 0
        typed = flask.request.form.get("number", "").strip().replace(",", "")
        if typed != str(meant.number):
            text = f"There were {counted(meant.number, 'dead job')}, and you typed another number."
            return self.message("Nothing was purged", text), 409
        if choice.key is not None:
            if not dead.delete(choice.key, stamp=meant.letter.stamp):
                return self._changed()
            done = 1
        else:
            ends = self._ends()
            deleted = dead.purge(choice.cause, died_by=meant.wall)
            for _ in itertools.islice(deleted, _MOST_CHANGED):
                done += 1
                if ends():
                    break
        return self._done("purge", "purged", choice, done, 0)

    def _done(self, action: str, word: str, choice: _Choice, done: int, skipped: int) -> Answer:
        log.warning(
            "%s %s by %s, in the inspector (%s)",
            counted(done, "dead job"),
            word,
            escaped(flask.g.userlock_operator),
            legible(choice.cause or ("one job" if choice.key is not None else "any cause"), _SHOWN),
        )
        wall = self._clock().wall()
        left: list[Letter] = []
        number = 0
        if choice.key is None:
            number = self._outbox.dead.count(choice.cause)
            left = self._first(choice, wall)
        return self.render(
            "jobs_done.html",
            action=action,
            title=f"{counted(done, 'job')} {word}",
            skipped=skipped,
            left=number,
            cause=choice.cause,
            token=_token(choice, left[0], wall, number) if left else "",
        )

    def _meant(self) -> _Meant | None:
        """Return the dead jobs that a question has shown; None if they have changed since."""
        choice = self._choice()
        token = flask.request.form.get("token", "")
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        wall, number = int(match[1]) / 1e6, int(match[2])
        for letter in self._first(choice, wall, most=_COMPARED):
            if hmac.compare_digest(_token(choice, letter, wall, number), token):
                return _Meant(choice, letter, wall, number)
        return None

    def _changed(self) -> Answer:
        text = "The dead jobs have changed since you looked. Nothing was done. Look again."
        return self.message("Dead jobs have changed", text), 409

    def _choice(self) -> _Choice:
        form = flask.request.form
        if form.get("key"):
            return _Choice(_key(form["key"], form.get("owner", "")))
        if "cause" not in form:
            flask.abort(400)
        return _Choice(cause=form["cause"])

    def _first(self, choice: _Choice, died_by: float, *, most: int = 1) -> list[Letter]:
        """Return the first of the dead jobs that are meant."""
        if choice.key is None:
            found = self._outbox.dead.list(choice.cause, most=most)
        else:
            letter = reading.read(choice.key)
            found = [] if letter is None else [letter]
        return [each for each in found if each.dead and each.died_at <= died_by + 1e-6]

    def _ends(self) -> Callable[[], bool]:
        clock = self._clock()
        ends = clock.now() + _MOST_SECONDS
        return lambda: clock.now() >= ends


def _key(text: str, owner: str) -> Any:
    try:
        return reading.key_of(text, owner)
    except ValueError:
        flask.abort(404)


def _token(choice: _Choice, letter: Letter, wall: float, number: int) -> str:
    """Return a token of the jobs that a question shows. The stamp in it is known to no other."""
    shown = f"{round(wall * 1e6)}.{number}"
    scope = "one" if choice.key is not None else "all"
    text = "\0".join([shown, scope, choice.cause, letter.key, str(letter.stamp)])
    return f"{shown}.{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
