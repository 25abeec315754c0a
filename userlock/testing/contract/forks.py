"""Test processes that fork while they have connections.

These tests stand apart because they need a suitable test process: a library
with threads of its own (such as gRPC) may not survive a fork while a server of
the tests runs on these threads too.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings

import pytest

from userlock.lock.store import LeaseStore
from userlock.testing.contract.base import PATIENCE, StoreContract, created, found

_COMMANDS = 100


class ForkContract(StoreContract):
    """Test a store that is used before a fork, and on both sides of it."""

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
    def test_a_forked_child_has_a_store_of_its_own(self, store: LeaseStore) -> None:
        """Parent and child do not disturb each other: no reply of one goes to the other."""
        created(store.create("ann", b"first", 60))
        # The child closes the pipe when it begins, so that both processes work at the same time.
        beginning, begins = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child has no threads
            child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(begins)
                good = store.create("child", b"first", 60) is not None
                for _ in range(_COMMANDS):
                    good = good and found(store.append("child", b"\nby it")).record[:5] == b"first"
                good = good and found(store.read("ann")).record[:5] == b"first"
                store.close()
                code = 0 if good else 2
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        os.close(begins)
        with os.fdopen(beginning, "rb") as pipe:
            pipe.read()
        expected = b"first"
        try:
            for number in range(_COMMANDS):
                expected += b"\n%d" % number
                assert found(store.append("ann", b"\n%d" % number)).record == expected
        finally:
            code = exit_code(child)
        assert code != 2, "the store gave a forked child wrong answers"
        assert code == 0, "the store raised in a forked child, or kept it waiting"
        assert found(store.read("ann")).record == expected


def exit_code(child: int) -> int:
    """Return the exit status of a child process; kill it if it does not end."""
    end = time.monotonic() + PATIENCE
    while True:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
