"""Streaks: on how many days in a row somebody learned something.

A day is a UTC date. Pure functions; the caller says what today is.
"""

from __future__ import annotations

import datetime


def after_activity(
    streak: int, last_active: datetime.date | None, today: datetime.date
) -> tuple[int, datetime.date]:
    """The streak and the last active day once something was done `today`.

    A `today` before the last active day (two clocks that disagree around
    midnight) changes nothing: a streak never shrinks because of learning.
    """
    if last_active is None:
        return 1, today
    days = (today - last_active).days
    if days <= 0:
        return max(streak, 1), last_active
    return (streak + 1 if days == 1 else 1), today


def as_of(streak: int, last_active: datetime.date | None, today: datetime.date) -> int:
    """The streak to show `today`: it lasts until a whole day has passed without learning."""
    if last_active is None or (today - last_active).days > 1:
        return 0
    return streak
