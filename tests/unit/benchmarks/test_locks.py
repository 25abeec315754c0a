"""The locks that take part; missing ones are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import locks
from benchmarks.locks import Kind, Store
from benchmarks.peers import Adapted, TimedOut, UserLock


def kind(*, store: Store = Store.MEMCACHED, modules: tuple[str, ...] = ()) -> Kind:
    return Kind(
        name="x",
        store=store,
        connect=lambda address: UserLock("memory://"),
        defaults="",
        modules=modules,
    )


def test_a_package_that_is_not_installed_is_named() -> None:
    missing = kind(modules=("json", "no_such_lock")).missing()
    assert missing is not None
    assert "no_such_lock" in missing
    assert ".ready-bench" in missing


def test_a_redis_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "redis-server" in (kind(store=Store.REDIS).missing() or "")
    assert kind().missing() is None
    # All of them, and ours as well.
    named = [note.partition(" is missing")[0] for note in locks.missing()]
    assert {"redis-py", "pottery", "userlock on Redis"} <= set(named)
    assert set(named) | {one.name for one in locks.present()} == set(locks.KINDS)


def test_ours_come_first() -> None:
    assert next(iter(locks.KINDS)) == locks.USERLOCK


def test_userlock_behind_the_common_interface() -> None:
    client = UserLock("memory://")
    lock = client.lock("learner-1")
    assert lock.acquire() is True
    lock.release()
    client.close()


def test_a_foreign_lock_that_times_out_raises_timed_out() -> None:
    def impatient() -> None:
        raise TimeoutError

    with pytest.raises(TimedOut):
        Adapted(lambda: False, lambda: None).acquire()
    with pytest.raises(TimedOut):
        Adapted(impatient, lambda: None, timeout_errors=(TimeoutError,)).acquire()
    with pytest.raises(TimeoutError):
        Adapted(impatient, lambda: None).acquire()


def test_a_failed_release_raises() -> None:
    lock = Adapted(lambda: True, lambda: False)
    assert lock.acquire() is True
    with pytest.raises(RuntimeError, match="no longer ours"):
        lock.release()
