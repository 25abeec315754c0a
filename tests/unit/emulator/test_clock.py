"""The version clock: versions grow, reads are repeatable."""

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
    assert VersionClock(5000, lambda: 1000).start_commit() == 5001, "above what was stored"


def test_reads_are_before_a_commit_or_after_it() -> None:
    clock = VersionClock(0, lambda: 1000)
    version = clock.start_commit()
    assert clock.read_time() == version - 1
    clock.finish_commit()
    read = clock.read_time()
    assert read >= version
    assert clock.start_commit() > read
