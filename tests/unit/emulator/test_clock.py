"""The version clock: versions grow, reads are repeatable."""

import pytest

from userlock_emulator.datastore.clock import VersionClock


def test_versions_follow_the_time_of_day_and_always_grow() -> None:
    now = [1000]
    clock = VersionClock(0, lambda: now[0])
    versions = []
    for time in (1000, 1000, 2000, 500):
        now[0] = time
        versions.append(clock.start_commit())
        clock.finish_commit()
    assert versions == [1000, 1001, 2000, 2001]


def test_it_continues_above_what_was_stored() -> None:
    assert VersionClock(5000, lambda: 1000).start_commit() == 5001


def test_a_read_during_a_commit_is_placed_before_it() -> None:
    clock = VersionClock(0, lambda: 1000)
    version = clock.start_commit()
    assert clock.read_time() == version - 1
    clock.finish_commit()
    assert clock.read_time() >= version


def test_a_commit_is_later_than_every_earlier_read() -> None:
    clock = VersionClock(0, lambda: 1000)
    assert clock.start_commit() > 0
    clock.finish_commit()
    read = clock.read_time()
    assert clock.start_commit() > read


def test_one_commit_at_a_time() -> None:
    clock = VersionClock(0, lambda: 1000)
    clock.start_commit()
    with pytest.raises(AssertionError, match="one commit at a time"):
        clock.start_commit()
