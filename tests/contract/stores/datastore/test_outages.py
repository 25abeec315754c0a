"""Servers that are missing, die, or say nothing; and processes that fork."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb

import userlock_emulator
from sample_app.stack import ports
from tests.contract.emulator.process import ROOT, EmulatorProcess
from tests.contract.stores.datastore.conftest import PATIENT, read
from tests.waiting import wait_until
from userlock.lock.store import StoreUnavailable
from userlock.stores.datastore import DatastoreStore

#: Short, because some tests wait for it.
TIMEOUT = 0.4
#: Of a verb: far more than twice its time-out, and less than gRPC's own.
BOUND_SECONDS = 10.0


@pytest.fixture
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def store_at(
    host: str, monkeypatch: pytest.MonkeyPatch, timeout: float = TIMEOUT
) -> DatastoreStore:
    monkeypatch.setenv("DATASTORE_EMULATOR_HOST", host)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "emulator")
    return DatastoreStore(timeout=timeout)


def verbs(store: DatastoreStore, version: object = 7) -> list[Any]:
    return [
        lambda: store.create("ann", b"mine", 60),
        lambda: store.read("ann"),
        lambda: store.read("ann", hurry=True),
        lambda: store.swap("ann", version, b"mine", 60),
        lambda: store.remove("ann", version),
        lambda: store.append("ann", b"\nline"),
    ]


@pytest.mark.parametrize(("listens", "says"), [(False, "UNAVAILABLE"), (True, "DEADLINE_EXCEEDED")])
def test_a_server_that_is_missing_or_silent(
    silent: str, monkeypatch: pytest.MonkeyPatch, listens: bool, says: str
) -> None:
    store = store_at(silent if listens else f"127.0.0.1:{ports.any_free()}", monkeypatch)
    for verb in verbs(store):
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=says) as caught:
            verb()
        assert time.monotonic() - began < BOUND_SECONDS
        assert (caught.value.sent, caught.value.slow) == (listens, listens)
    store.close()


def test_a_server_that_is_killed_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmulatorProcess() as first:
        port = int(first.host.rpartition(":")[2])
        with contextlib.closing(store_at(first.host, monkeypatch, PATIENT)) as patient:
            version = patient.create("ann", b"first", 60)
            assert read(patient).record == b"first", "the control: it works while it lives"
        store = store_at(first.host, monkeypatch)
        first.stop(signal.SIGKILL)
        for verb in verbs(store, version):
            with pytest.raises(StoreUnavailable) as caught:
                verb()
            assert caught.value.slow == caught.value.sent, "what was sent may land later"
    with EmulatorProcess(port=port):

        def answers() -> bool:
            with contextlib.suppress(StoreUnavailable):
                assert store.read("ann") is None, "this emulator keeps nothing"
                return True
            return False

        wait_until(answers, 20)
        store.close()
        store = store_at(first.host, monkeypatch, PATIENT)
        assert store.create("ann", b"second", 60) is not None
        assert store.remove("ann", version) is False, "a version of before"
    store.close()


class TestClients:
    def test_a_client_of_its_own_is_made_when_it_is_needed(
        self, client: ndb.Client, server: userlock_emulator.Emulator
    ) -> None:
        made: list[ndb.Client] = []

        def factory() -> ndb.Client:
            made.append(ndb.Client())
            return made[-1]

        store = DatastoreStore(client_factory=factory)
        assert made == []
        store.create("ann", b"first", 60)
        assert read(store).record == b"first"
        assert len(made) == 1
        store.close()
        store.close()
        assert read(store).record == b"first", "it connects again"
        assert len(made) == 2
        store.close()

    @pytest.mark.usefixtures("client")
    def test_a_client_whose_making_hangs_is_not_waited_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As with a silent metadata server. It is there for a later caller."""
        go_on = threading.Event()
        made: list[ndb.Client] = []

        def factory() -> ndb.Client:
            go_on.wait(20)
            made.append(ndb.Client())
            return made[-1]

        store = DatastoreStore(client_factory=factory, timeout=10)
        started = time.monotonic()
        with monkeypatch.context() as patch:
            patch.setattr("userlock.stores.datastore.rpc._MAKING_TIMEOUT", 0.1)
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"no client: .* takes over") as caught:
                    store.read("ann")
                assert not caught.value.sent
        assert time.monotonic() - started < 10
        go_on.set()
        wait_until(lambda: made)
        assert store.read("ann") is None
        assert len(made) == 1
        store.close()

    def test_the_event_loop_goes_on_while_a_client_is_made(self, client: ndb.Client) -> None:
        go_on = threading.Event()
        store = DatastoreStore(client_factory=lambda: go_on.wait(20) and client, timeout=10)

        async def read() -> bool:
            reading = asyncio.create_task(store.aread("ann"))
            await asyncio.sleep(0)
            waits = not reading.done()
            go_on.set()
            return waits and await reading is None

        assert asyncio.run(read())

    def test_a_client_that_was_given_stays_open(self, client: ndb.Client) -> None:
        store = DatastoreStore(client, timeout=10)
        store.create("ann", b"first", 60)
        store.close()
        with client.context():
            assert ndb.Key("UserLockLease", "userlock=ann").get() is not None

    def test_a_client_that_was_closed(self, client: ndb.Client) -> None:
        store = DatastoreStore(client, timeout=10)
        store.create("ann", b"first", 60)
        client.stub.close()
        with pytest.raises(StoreUnavailable, match="closed") as caught:
            store.read("ann")
        assert (caught.value.sent, caught.value.slow) == (False, False)

    def test_a_client_and_a_factory_are_refused(self, client: ndb.Client) -> None:
        with pytest.raises(TypeError, match="not both"):
            DatastoreStore(client, client_factory=ndb.Client)

    def test_a_named_database_is_in_the_routing_header(self) -> None:
        """Without it the service does not find a database that is not the default one."""
        sent: list[Any] = []

        def lookup(request: Any, *, timeout: float, metadata: Any) -> Any:
            sent.extend(metadata)
            raise ValueError("seen")

        client = SimpleNamespace(
            project="p1", database="db 1", namespace=None, stub=SimpleNamespace(lookup=lookup)
        )
        with pytest.raises(StoreUnavailable, match="seen"):
            DatastoreStore(client).read("ann")
        assert sent == [("x-goog-request-params", "project_id=p1&database_id=db+1")]


FORK = """
import os, sys, traceback
from google.cloud import ndb
from userlock.stores.datastore import DatastoreStore

store = DatastoreStore(ndb.Client() if sys.argv[1] == "given" else None, timeout=10)
version = store.create("ann", b"parent's", 60)
assert version is not None
child = os.fork()
if child == 0:
    code = 1
    try:
        assert store.create("ann", b"child's", 60) is None
        assert store.create("bob", b"child's", 60) is not None
        code = 0
    except BaseException as trouble:
        advised = "GRPC_ENABLE_FORK_SUPPORT=1" in getattr(trouble, "reason", "")
        if advised and not trouble.sent:
            code = 3
        else:
            traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
_, status = os.waitpid(child, 0)
assert store.read("bob") is not None or os.waitstatus_to_exitcode(status) == 3
assert store.remove("ann", version)
store.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


#: The contract's part about forks, which pytest cannot run here.
CONTRACT = """
from userlock.stores.datastore import DatastoreStore
from userlock.testing import ForkContract

ForkContract().test_a_forked_child_has_a_store_of_its_own(DatastoreStore(timeout=10))
"""


class TestFork:
    """In a process of its own: this one has a server's threads in it."""

    def run(
        self,
        server: userlock_emulator.Emulator,
        *arguments: str,
        script: str = FORK,
        **environment: str,
    ) -> int:
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            cwd=ROOT,
            env=os.environ | server.env | environment,
            timeout=30,
            check=False,
        )
        return done.returncode

    def test_a_client_that_was_given_goes_on_in_the_child(
        self, client: ndb.Client, server: userlock_emulator.Emulator
    ) -> None:
        assert self.run(server, "given") == 0

    def test_the_contract(self, client: ndb.Client, server: userlock_emulator.Emulator) -> None:
        assert self.run(server, script=CONTRACT) == 0

    def test_where_grpc_does_not_support_it(
        self, client: ndb.Client, server: userlock_emulator.Emulator
    ) -> None:
        """An RPC would hang for ever, so none is sent."""
        assert self.run(server, "made", GRPC_ENABLE_FORK_SUPPORT="0") == 3
