"""Options of the wrong type, or out of bounds, are refused where they are given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flask
import pytest

import userlock
from userlock.constraints import Quota
from userlock.contrib.client import send_once
from userlock.contrib.flask import UserLock, user_lock
from userlock.contrib.idempotent_requests.views import IdempotentView
from userlock.contrib.opentelemetry import instrument
from userlock.contrib.outbox_endpoints import OutboxEndpoints
from userlock.deletion import Tree, deletions_of
from userlock.events import LISTENERS
from userlock.idempotency import Flows, complete_by_relay
from userlock.lock.lease import check_max_waiting
from userlock.outbox import Outbox, Retry, RetryAfter
from userlock.outbox.engines.inline import InlineEngine

MONTH = 30 * 86_400.0
LOCKS = userlock.LockService.from_url("memory://")


class Shelf(userlock.UserModel):
    """The root of a tree."""

    _lock_id_from_key = userlock.key_id


def job(**options: Any) -> object:
    options = {"owner": None, **options}
    decorate: Any = Outbox("inline://").job(name="x", **options)
    return decorate(lambda: None)


def view(**options: Any) -> IdempotentView[Any]:
    return IdempotentView(len, lambda _: (200, [], b""), lambda *_: None, **options)


def quota() -> Quota:
    return Quota("q", Outbox("inline://"), limit=lambda _: 1, select=lambda _: ())


def tree(**options: Any) -> object:
    return Tree(Shelf, Outbox("inline://"), **options)


def yielded(seconds: float) -> object:
    with userlock.scope(LOCKS), userlock.global_lock("ann") as lock:
        return lock.yield_to_waiters(wait_timeout=seconds)


#: Each option with numbers that it takes, and numbers that it refuses.
OPTIONS: dict[str, tuple[Callable[[Any], object], tuple[float, ...], tuple[float, ...]]] = {
    "lock_timeout": (
        lambda given: userlock.global_lock("ann", lock_timeout=given),
        (0.001, 5), (0, MONTH, 10**400)),
    "wait_timeout": (
        lambda given: userlock.global_lock("ann", wait_timeout=given), (0, 5), (-0.001, 1e9)),
    "wait_timeout ": (yielded, (0, 5), (-0.001, 1e9)),
    "heartbeat_lock_timeout": (
        lambda given: userlock.LockPolicy(heartbeat_lock_timeout=given), (0.001, 5), (0, MONTH)),
    "max_waiting": (check_max_waiting, (0, 3, 10**6), (-1, 1.0)),
    "ages_after": (lambda given: userlock.PriorityPolicy(
        wait_timeout=5, lock_timeout=5, ages_after=given), (0, 2.5), (-1,)),
    **{f"Retry: {name}": (
        lambda given, name=name: Retry(**{name: given}), fine, refused)  # type: ignore[misc]
       for name, fine, refused in (
           ("attempts", (1, 1000), (0, 1001, 1.5)), ("first_seconds", (0, 0.5), (-1, 1e6)),
           ("factor", (1, 2.5), (0.5,)), ("most_seconds", (0,), (-1, 31 * 86_400)),
           ("jitter", (0, 1), (1.1,)))},
    "time_limit": (lambda given: job(time_limit=given), (0.05, 60), (0, 1e9)),
    "every": (lambda given: job(every=given), (60, 86_400), (59, 1e9)),
    "RetryAfter": (RetryAfter, (0, MONTH), (-1, MONTH + 1)),
    "claim_seconds": (
        lambda given: Outbox("inline://", claim_seconds=given), (0.5, 900), (0, 1e6)),
    "seconds": (lambda given: Outbox("inline://").relay(seconds=given), (), (-1, 1e6)),
    "claim_seconds ": (lambda given: Flows(claim_seconds=given), (0.5,), (0, 1e6)),
    "keep_hours": (lambda given: Flows(keep_hours=given), (0.5, 24), (0, 24 * 366)),
    "max_bytes": (lambda given: view(max_bytes=given), (0, 10**9), (-1, 1.5)),
    "hours": (lambda given: quota().owners(given), (), (-1, 1e7)),
    "batch": (lambda given: tree(batch=given), (1, 500), (0, 501, 1.5)),
    "most": (lambda given: deletions_of("ann", given), (), (-1, 1.5)),
    "least_seconds": (lambda given: userlock.Polling(least_seconds=given), (0.001,), (-1, 10**400)),
    "threads": (InlineEngine, (0, 64), (-1, 65, 1.5)),
    "most_seconds": (lambda given: userlock.Polling(most_seconds=given), (0.5,), (-1, 10**400)),
    "keep_days": (lambda given: tree(keep_days=given), (0, 0.5), (-1,)),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option(name: str) -> None:
    give, fine, refused = OPTIONS[name]
    for each in fine:
        give(each)
    text = f"{name.strip()} must be "
    for wrong in (*refused, math.nan, math.inf, -math.inf):
        with pytest.raises((ValueError, TypeError), match=text):
            give(wrong)
    for none in ("5", True, [5], b"5"):
        with pytest.raises(TypeError, match=text + "a (whole )?number"):
            give(none)


def web(**options: Any) -> object:
    return UserLock(flask.Flask(__name__), **options)


#: Each other option, and values that it refuses.
OTHERS: dict[str, tuple[Callable[[Any], object], tuple[Any, ...]]] = {
    "heartbeat": (lambda given: userlock.global_lock("ann", heartbeat=given), ("false", 1)),
    "fencing": (lambda given: userlock.Settings(fencing=given), ("no", 0)),
    "settings": (lambda given: userlock.scope(settings=given).__enter__(), (5, {})),
    "request": (lambda given: userlock.scope(request=given).__enter__(), (5, b"GET")),
    "by": (lambda given: LOCKS.break_lock("ann", by=given), (5,)),
    "listener": (LISTENERS.add, (5, "alarm")),
    "operator": (lambda given: userlock.with_extension("ann", given), (5, "extend")),
    "retry": (lambda given: job(retry=given), (5, "often")),
    "never_retry": (lambda given: job(never_retry=given), (5, [5], "ValueError", [object])),
    "transactional": (lambda given: job(transactional=given), ("no", 1)),
    "ordered": (lambda given: job(ordered=given), ("no", 1)),
    "owner": (lambda given: job(owner=given), ("user_id", 5)),
    "tiers": (lambda given: Retry(tiers=given), (5, ["slow"])),
    "client": (lambda given: Flows(client=given), (5, "app:client")),
    "client ": (lambda given: web(client=given), (5,)),
    "context_options": (lambda given: web(context_options=given), (5, [])),
    "context_options ": (lambda given: web(context_options=given), ({"namespace": "blue"},)),
    "allowed": (lambda given: user_lock("user_id", allowed=given), (5, True)),
    "wait_timeout": (lambda given: user_lock("user_id", wait_timeout=given), (True, "5")),
    "lock_id": (lambda given: instrument(lock_id=given), ("no", 1)),
    "blocked_by": (lambda given: instrument(blocked_by=given), ("no", 0)),
    "app": (UserLock, (5, "app:app")),
    "batch_prefixes": (lambda given: web(batch_prefixes=given), (5, "/tasks/", [b"/tasks/"])),
    "trusted_headers": (lambda given: web(trusted_headers=given), (5, None, "X-Queue", [5])),
    "methods": (lambda given: view(methods=given), (5, None, "POST", [5])),
    "name": (lambda given: view(name=given), (5, b"x")),
    "flows": (lambda given: complete_by_relay(given, Outbox("inline://")), (5, Flows)),
    "key": (lambda given: send_once(lambda _: Any, key=given), (None, 0, 5, b"x")),  # type: ignore[type-var]
    "callers": (lambda given: OutboxEndpoints(Outbox("inline://"), callers=given), (5,)),
    "url_prefix": (lambda given: OutboxEndpoints(Outbox("inline://"), url_prefix=given), (5,)),
    "retry ": (lambda given: Outbox("inline://", retry=given), (5, {})),
    "outbox": (lambda given: instrument(outbox=given), (5, Outbox)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_each_other_option(name: str) -> None:
    give, refused = OTHERS[name]
    for wrong in refused:
        with pytest.raises((ValueError, TypeError), match=f"{name.strip()} must be "):
            give(wrong)


def test_bounds_are_shown_in_full() -> None:
    with pytest.raises(ValueError, match=r"at least 0\.001 and at most 2,588,400 seconds, not 0$"):
        userlock.global_lock("ann", lock_timeout=0)


@pytest.mark.parametrize("tiers", [{0: "slow"}, {"1": "slow"}, {1: 5}, {5: "slow"}])
def test_tiers_that_no_failure_reaches(tiers: Any) -> None:
    with pytest.raises(ValueError, match=r"fewer than attempts \(5\)"):
        Retry(attempts=5, tiers=tiers)


def test_one_class_is_enough_for_never_retry() -> None:
    assert job(never_retry=KeyError).never_retry == (KeyError,)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="not 'Gone'"):
        job(never_retry="Gone")
