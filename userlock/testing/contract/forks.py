"""The contract's fourth part: processes that fork while they have connections.

It stands apart from the others because it asks something of the whole test
process: a library under the store that has threads of its own (gRPC, say) may
not survive a fork while a server of the tests runs on those threads too.
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
    """A store that was used before a fork is used on both sides of it."""

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the system knows no fork")
    def test_a_forked_child_has_a_store_of_its_own(self, store: LeaseStore) -> None:
        """Nothing that it does gets in its parent's way: no reply of one goes to the other."""
        created(store.create("ann", b"first", 60))
        # Closed by the child when it begins: one might be done before the other gets in its way.
        beginning, begins = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that threads do not come along
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
            code = _exit_code(child)
        assert code != 2, "the store gave a forked child wrong answers"
        assert code == 0, "the store raised in a forked child, or kept it waiting"
        assert found(store.read("ann")).record == expected


def _exit_code(child: int) -> int:
    """Return the exit status of a child process; kill it if it does not end."""
    end = time.monotonic() + PATIENCE
    while True:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
