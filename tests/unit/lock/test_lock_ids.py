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


@pytest.mark.parametrize("lock_id", [" ", "🔒" * MAX_CHARACTERS, "\n", "\ud800"])
def test_any_string_that_is_not_too_long_is_a_lock_id(lock_id: str) -> None:
    assert check_lock_id(lock_id) == lock_id


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


def test_usable_arguments_are_returned() -> None:
    assert check_lock_id(17) == "17"


def test_an_empty_lock_id_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        userlock.global_lock("")


@pytest.mark.parametrize("lock_id", [None, b"learner", 1.5, True])
def test_what_is_no_string_is_refused(lock_id: Any) -> None:
    with pytest.raises(TypeError, match="a lock id must be a non-empty str"):
        userlock.global_lock(lock_id)


def test_a_priority_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="'interactive' or 'batch', not 'urgent'"):
        userlock.global_lock("learner", priority="urgent")  # type: ignore[arg-type]


class Plan(str, enum.Enum):  # noqa: UP042 (its `str` is its name)
    BASIC = "basic"


class Number(enum.IntEnum):
    SEVEN = 7


@pytest.mark.parametrize(("lock_id", "text"), [(Plan.BASIC, "basic"), (Number.SEVEN, "7")])
def test_a_member_of_an_enumeration_is_its_text(lock_id: Any, text: str) -> None:
    assert check_lock_id(lock_id) == text
    assert userlock.global_lock(lock_id).lock_id == text


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
