"""Streaks: the number of consecutive days with an activity.

A day is a UTC date. Pure functions; the caller gives today's date.
"""

from __future__ import annotations

import datetime


def after_activity(
    streak: int, last_active: datetime.date | None, today: datetime.date
) -> tuple[int, datetime.date]:
    """Return the streak and the last active day after an activity `today`.

    A `today` before the last active day (two clocks that disagree around midnight) changes nothing:
    a streak never shrinks because of learning.
    """
    if last_active is None:
        return 1, today
    days = (today - last_active).days
    if days <= 0:
        return max(streak, 1), last_active
    return (streak + 1 if days == 1 else 1), today


def as_of(streak: int, last_active: datetime.date | None, today: datetime.date) -> int:
    """Return the streak to show `today`: it ends after a whole day without an activity."""
    if last_active is None or (today - last_active).days > 1:
        return 0
    return streak
