"""The port does what the article describes, flaws included."""

from __future__ import annotations

import pytest

from benchmarks.scheme2016 import Lock, LockTimeout


class _Memcached:
    """pymemcache's `add` and `delete` on a dictionary, or an error."""

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}
        self.down = False
        self.asked_at: list[float] = []
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def add(self, key: str, value: bytes, *, expire: int, noreply: bool) -> bool:
        assert expire > 0
        assert not noreply
        if self.down:
            raise ConnectionRefusedError
        self.asked_at.append(self.now)
        return self.items.setdefault(key, value) is value and len(self.asked_at) > self.refuse

    #: The number of attempts that find the lock taken.
    refuse = 0

    def delete(self, key: str, *, noreply: bool) -> bool:
        if self.down:
            raise ConnectionRefusedError
        return self.items.pop(key, None) is not None


def _lock(server: _Memcached, *, batch: bool = False) -> Lock:
    return Lock(server, "learner", batch=batch, clock=lambda: server.now, sleep=server.sleep)


def test_a_free_lock_is_taken_at_once_and_deleted() -> None:
    server = _Memcached()
    lock = _lock(server)
    assert lock.acquire() is True
    assert server.now == 0
    lock.release()
    assert server.items == {}


def test_a_held_lock_is_polled_every_second() -> None:
    server = _Memcached()
    server.refuse = 3
    assert _lock(server).acquire() is True
    assert server.asked_at == [0, 1, 2, 3]


def test_it_times_out_after_its_wait() -> None:
    server = _Memcached()
    server.refuse = 100
    with pytest.raises(LockTimeout):
        _lock(server).acquire(wait_timeout=5)
    assert server.asked_at == [0, 1, 2, 3, 4, 5]


def test_batch_gives_way_to_interactive_waiters() -> None:
    server = _Memcached()
    _lock(server, batch=True).acquire()
    assert server.asked_at == [1.1]


def test_without_memcached_it_goes_on() -> None:
    server = _Memcached()
    server.down = True
    lock = _lock(server)
    assert lock.acquire() is False
    lock.release()


def test_the_delete_checks_no_owner() -> None:
    """Its flaws are ported as well."""
    server = _Memcached()
    late = _lock(server)
    late.acquire()
    server.items.clear()  # its lease expired
    _lock(server).acquire()
    late.release()
    assert server.items == {}
