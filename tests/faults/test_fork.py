"""A process that forks while it holds locks and connections."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import pytest

import userlock
from tests.leases import record_of, taken
from tests.servers import Memcached
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.lease import Released
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.store import StoreUnavailable
from userlock.stores import MemcacheStore
from userlock.testing import make_claim


class TestFork:
    def test_a_forked_child_uses_connections_of_its_own(
        self, memcached: Memcached, prefix: str
    ) -> None:
        leases = LeaseProtocol(MemcacheStore(memcached.address, prefix=prefix), SYSTEM_CLOCK)
        lease = taken(leases.take(make_claim()))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                child_lease = leases.take(make_claim("child"))
                good = child_lease is not None and leases.take(make_claim()) is None
                os.write(write, b"y" if good else b"n")
            finally:
                os._exit(0)
        os.close(write)
        assert os.read(read, 1) == b"y"
        os.waitpid(child, 0)
        os.close(read)
        assert leases.release(lease) == Released()

    def test_a_forked_child_may_have_as_many_connections_as_its_parent(
        self, memcached: Memcached, prefix: str
    ) -> None:
        """Connections in use by other threads at the fork do not count in the child."""
        store = MemcacheStore(memcached.address, prefix=prefix)
        held = [store.connections.take() for _ in range(32)]
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if store.create("child", b"first", 60) is not None else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        with pytest.raises(StoreUnavailable, match="all 32 connections are in use"):
            store.create("parent", b"first", 60)
        for connection in held:
            connection.close()

    def test_a_fork_during_a_look_up_does_not_wait_for_it_for_ever(
        self, memcached: Memcached, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The thread of the look-up does not exist in the child."""
        answer = threading.Event()
        look_up = socket.getaddrinfo

        def slow(*args: Any, **kwargs: Any) -> Any:
            answer.wait()
            return look_up(*args, **kwargs)

        module = "userlock.stores.address.socket.getaddrinfo"
        monkeypatch.setattr(module, slow)
        leases = LeaseProtocol(
            MemcacheStore(f"localhost:{memcached.port}", prefix=prefix), SYSTEM_CLOCK
        )
        with pytest.raises(StoreUnavailable, match="look-up"):
            leases.take(make_claim())
        child = os.fork()
        if child == 0:
            code = 1
            try:
                monkeypatch.undo()
                code = 2 if leases.take(make_claim("child")) is None else 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        answer.set()
        assert os.waitstatus_to_exitcode(status) == 0

    def test_a_forked_child_does_not_release_its_parents_lock(
        self, memcached: Memcached, prefix: str
    ) -> None:
        store = MemcacheStore(memcached.address, prefix=prefix)
        userlock.configure(service=userlock.LockService(store))
        with userlock.global_lock("learner-1"):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    with userlock.global_lock("another"):
                        pass
                    code = 0 if userlock.current_scope() is None else 2
                finally:
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            assert not record_of(store, "learner-1").free
        assert store.read("learner-1") is None
