"""The lab's endpoint: read a counter, think, write it back one higher.

The same three lines run under each protection. The unprotected counter is a kind of its own,
without the library's checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import flask
from google.api_core.exceptions import Aborted, RetryError
from google.cloud import ndb

import userlock
from sample_app import validation

bench = flask.Blueprint("lab_bench", __name__)


class LabCounter(userlock.UserModel):
    """A counter under its user's lock."""

    _lock_id_from_key = userlock.key_id
    count = ndb.IntegerProperty(default=0, indexed=False)


class LabPlainCounter(ndb.Model):
    """A counter without the library."""

    count = ndb.IntegerProperty(default=0, indexed=False)


class Stopwatch:
    """A request's measurement of itself, on a clock shared by all local processes."""

    def __init__(self) -> None:
        self.asked = time.monotonic()
        self.began: float | None = None
        self.attempts = 0
        self.degraded = False
        self.count: int | None = None

    def inside(self) -> None:
        """Record that the critical section begins, or begins again."""
        self.began = time.monotonic()
        self.attempts += 1

    def facts(self, *, accepted: bool) -> dict[str, object]:
        return {
            "asked": self.asked,
            "began": self.began,
            "ended": time.monotonic(),
            "attempts": self.attempts,
            "degraded": self.degraded,
            "count": self.count,
            "accepted": accepted,
        }


def _one_more(model: type[ndb.Model], name: str, seconds: float, watch: Stopwatch) -> None:
    """Run the critical section."""
    watch.inside()
    # Not from the context's cache, which a transaction's second attempt may share.
    counter = model.get_by_id(name, use_cache=False) or model(id=name)
    time.sleep(seconds)
    counter.count += 1
    watch.count = counter.count
    counter.put()


def _unprotected(name: str, seconds: float, watch: Stopwatch) -> None:
    _one_more(LabPlainCounter, name, seconds, watch)


def _in_transaction(name: str, seconds: float, watch: Stopwatch) -> None:
    ndb.transaction(lambda: _one_more(LabPlainCounter, name, seconds, watch))


def _locked(name: str, seconds: float, watch: Stopwatch) -> None:
    batch = "batch" in flask.request.args
    with userlock.global_lock(
        name, wait_timeout=30, priority="batch" if batch else "interactive"
    ) as lock:
        watch.degraded = lock.degraded
        _one_more(LabCounter, name, seconds, watch)


_WAYS: dict[str, Callable[[str, float, Stopwatch], None]] = {
    "none": _unprotected,
    "transaction": _in_transaction,
    "lock": _locked,
}


@bench.post("/lab/bench/<way>/<name>")
def one_more(way: str, name: str) -> tuple[dict[str, object], int]:
    """Add one. Return 200 if it was added, 409 if it was refused and not added."""
    do = _WAYS.get(way)
    if do is None:
        flask.abort(404)
    name = validation.learner_id(name)
    hold_ms = validation.number("hold_ms", flask.request.args.get("hold_ms", 0), least=0, most=500)
    watch = Stopwatch()
    try:
        do(name, hold_ms / 1000, watch)
    except (userlock.StaleWriteError, Aborted):
        return watch.facts(accepted=False), 409
    except RetryError as error:
        # The last attempt of ndb's transaction was aborted as well.
        if not isinstance(error.cause, Aborted):
            raise
        return watch.facts(accepted=False), 409
    return watch.facts(accepted=True), 200


@bench.get("/lab/bench/<way>/<name>")
def count(way: str, name: str) -> dict[str, int]:
    """Return the stored count."""
    name = validation.learner_id(name)
    model = LabCounter if way == "lock" else LabPlainCounter
    counter = model.get_by_id(name, use_cache=False)
    return {"count": 0 if counter is None else counter.count}
