"""Options that are numbers: what is none, or out of bounds, is refused where it is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import userlock
from userlock.constraints import Quota
from userlock.contrib.idempotent_requests.views import IdempotentView
from userlock.deletion import Tree
from userlock.idempotency import Flows
from userlock.lock.lease import check_max_waiting
from userlock.outbox import Outbox, Retry, RetryAfter

MONTH = 30 * 86_400.0


class Shelf(userlock.UserModel):
    """The root of a tree."""

    _lock_id_from_key = userlock.key_id


def job(**options: Any) -> object:
    decorate: Any = Outbox("inline://").job(name="x", owner=None, **options)
    return decorate(lambda: None)


def view(**options: Any) -> IdempotentView[Any]:
    return IdempotentView(len, lambda _: (200, [], b""), lambda *_: None, **options)


def quota() -> Quota:
    return Quota("q", Outbox("inline://"), limit=lambda _: 1, select=lambda _: ())


def tree(**options: Any) -> object:
    return Tree(Shelf, Outbox("inline://"), **options)


#: Each option with numbers that it takes, and numbers that it refuses.
OPTIONS: dict[str, tuple[Callable[[Any], object], tuple[float, ...], tuple[float, ...]]] = {
    "lock_timeout": (
        lambda given: userlock.global_lock("ann", lock_timeout=given),
        (0.001, 5), (0, MONTH, 10**400)),
    "wait_timeout": (
        lambda given: userlock.global_lock("ann", wait_timeout=given), (0, 5), (-0.001, 1e9)),
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
