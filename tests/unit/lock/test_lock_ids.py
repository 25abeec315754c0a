"""Bad arguments get a clear error at the call."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest

import userlock
from userlock.ids import MAX_CHARACTERS
from userlock.lock.lease import check_lock_id
from userlock.lock.policy import PriorityPolicy
from userlock.stores import MemoryStore


class Plan(str, enum.Enum):  # noqa: UP042 (its `str` is its name)
    BASIC = "basic"


class Number(enum.IntEnum):
    SEVEN = 7


@pytest.mark.parametrize(
    ("lock_id", "text"),
    [
        *((text, text) for text in (" ", "🔒" * MAX_CHARACTERS, "\n", "\ud800")),
        (17, "17"),
        (Plan.BASIC, "basic"),
        (Number.SEVEN, "7"),
    ],
)
def test_any_text_that_is_not_too_long_is_a_lock_id(lock_id: Any, text: str) -> None:
    assert check_lock_id(lock_id) == text
    assert userlock.global_lock(lock_id).lock_id == text


@pytest.mark.parametrize(
    "take",
    [
        userlock.global_lock,
        lambda lock_id: userlock.global_locks(["ann", lock_id]),
        userlock.acquire_lock,
        userlock.release_lock,
        userlock.holder,
        userlock.waiters,
        userlock.break_lock,
        lambda lock_id: userlock.with_extension(lock_id, print, lock_timeout=1),
    ],
)
def test_a_longer_one_is_refused_by_all_that_take_one(take: Callable[[Any], object]) -> None:
    service = userlock.LockService(MemoryStore())
    for lock_id in ("x" * (MAX_CHARACTERS + 1), 10**MAX_CHARACTERS):
        with (
            userlock.scope(service),
            pytest.raises(ValueError, match="at most 1,500 characters, and this one has 1,501"),
        ):
            take(lock_id)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"lock_id": ""}, ValueError, "must not be empty"),
        *(
            ({"lock_id": wrong}, TypeError, "a lock id must be a non-empty str")
            for wrong in (None, b"learner", 1.5, True)
        ),
        ({"lock_id": "ann", "priority": "urgent"}, ValueError, "or 'batch', not 'urgent'"),
    ],
)
def test_what_is_no_lock_id_or_priority_is_refused(
    arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        userlock.global_lock(**arguments)


@pytest.mark.parametrize(
    "use",
    [
        lambda: userlock.global_lock("ann", heartbeat="false"),  # type: ignore[arg-type]
        lambda: userlock.global_locks(["ann"], heartbeat="false"),  # type: ignore[arg-type]
        lambda: userlock.acquire_lock("ann", heartbeat="false"),  # type: ignore[arg-type]
        lambda: PriorityPolicy(heartbeat="false"),  # type: ignore[arg-type]
        lambda: PriorityPolicy(polling="fast"),  # type: ignore[arg-type]
        lambda: PriorityPolicy(wait_timeout="10"),  # type: ignore[arg-type]
        lambda: userlock.global_lock("ann", max_waiting=True),
        lambda: userlock.global_locks(["ann"], max_waiting=-1),
        lambda: PriorityPolicy(max_waiting=1.5),  # type: ignore[arg-type]
    ],
)
def test_options_of_another_type_are_refused_at_once(use: Callable[[], object]) -> None:
    service = userlock.LockService(MemoryStore())
    with userlock.scope(service), pytest.raises((TypeError, ValueError), match="must be"):
        use()
    assert service.holder("ann") is None
