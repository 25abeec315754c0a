"""The wall clock of a process is wrong as configured, and no other clock is."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.watched import Present, WallClockOffset, WatchedClock
from userlock.clock import SYSTEM_CLOCK


def test_wrong_for_each_by_its_own(tmp_path: Path) -> None:
    path = tmp_path / "offset"
    nemesis = WallClockOffset(path)
    ahead, behind, right = (
        WatchedClock(Present(), WallClockOffset(path, skew)) for skew in (1.0, -1.0, 0.0)
    )
    nemesis.set(1000.0)
    assert 999 < ahead.wall() - SYSTEM_CLOCK.wall() < 1001
    assert -1001 < behind.wall() - SYSTEM_CLOCK.wall() < -999
    assert -1 < right.wall() - SYSTEM_CLOCK.wall() < 1
    assert -1 < ahead.now() - SYSTEM_CLOCK.now() < 1
    nemesis.set(-5.0)
    assert ahead.wall() < SYSTEM_CLOCK.wall()
