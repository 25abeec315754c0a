"""Each fault of each RPC of each verb: the verb's error, and the row afterwards."""

from __future__ import annotations

import traceback

import grpc
import pytest

import userlock
from tests.contract.stores.datastore.cases import CASES, STEPS, Case, fails
from tests.contract.stores.datastore.conftest import read
from tests.contract.stores.datastore.faulty import (
    Fault,
    FaultyClient,
    lost,
    not_sent,
    of_the_parent,
    refused,
)
from userlock.lock.store import RecordRefused, StoreUnavailable
from userlock.stores.datastore import HURRY_TIMEOUT, TIMEOUT, DatastoreStore

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
SLOW = grpc.StatusCode.DEADLINE_EXCEEDED

#: Words of the advice that goes with an error.
ADVICE = {
    grpc.StatusCode.PERMISSION_DENIED: "roles/datastore.user",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "quota",
    grpc.StatusCode.NOT_FOUND: "no such database",
    grpc.StatusCode.UNAUTHENTICATED: "credentials",
    grpc.StatusCode.FAILED_PRECONDITION: "Datastore mode",
}
OF_ONE_RECORD = (grpc.StatusCode.ABORTED, grpc.StatusCode.INVALID_ARGUMENT)
CODES = [code for code in grpc.StatusCode if code not in (grpc.StatusCode.OK, SLOW)]


class TestWithoutFaults:
    """The control of the tests below, and the cost of each verb."""

    @pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
    def test_round_trips_and_no_transaction(
        self, faulty: FaultyClient, faulty_store: DatastoreStore, store: DatastoreStore, case: Case
    ) -> None:
        case.verb(faulty_store, case.prepare(store))
        assert faulty.calls == case.rpcs
        for name, request in zip(faulty.calls, faulty.requests, strict=True):
            if name == "commit":
                assert request.mode.name == "NON_TRANSACTIONAL"
                assert not request.transaction
                assert "single_use_transaction" not in request
            else:
                assert not request.read_options.transaction
                assert "new_transaction" not in request.read_options

    def test_time_outs(self, faulty: FaultyClient, faulty_store: DatastoreStore) -> None:
        version = faulty_store.create("ann", b"first", 60)
        faulty_store.append("ann", b"\nline")
        faulty_store.read("ann")
        faulty_store.swap("ann", version, b"next", 60)
        faulty_store.remove("ann", version)
        assert set(faulty.timeouts) == {TIMEOUT}
        faulty_store.read("ann", hurry=True)
        assert faulty.timeouts[-1] == HURRY_TIMEOUT < TIMEOUT


class TestErrors:
    @pytest.mark.parametrize(("case", "step"), STEPS)
    def test_each_rpc_that_fails(
        self,
        faulty: FaultyClient,
        faulty_store: DatastoreStore,
        store: DatastoreStore,
        case: Case,
        step: int,
    ) -> None:
        """Without a reply in time, over a broken connection, and without any."""
        version = case.prepare(store)
        broken = refused(UNAVAILABLE, "Socket closed", local=True)
        for fault, expected in (
            (refused(SLOW), (True, True)),
            (broken, (True, True)),
            (not_sent(), (step > 0, False)),  # certain where nothing was sent before it
        ):
            trouble = fails(faulty, step, fault, lambda: case.verb(faulty_store, version))
            assert (trouble.sent, trouble.slow) == expected
            if expected == (True, True) and fault is not broken:
                assert len(faulty.calls) == step + 1, "a slow server is not asked again"

    def test_no_connection_for_the_second_try(
        self, faulty: FaultyClient, faulty_store: DatastoreStore
    ) -> None:
        """Behind a front end, the first one may yet be carried out."""
        faulty.faults = [refused(UNAVAILABLE, "Socket closed", local=True), *[not_sent()] * 9]
        with pytest.raises(StoreUnavailable, match="failed to connect") as caught:
            faulty_store.read("ann")
        assert len(faulty.calls) == 2
        assert (caught.value.sent, caught.value.slow) == (True, True)

    @pytest.mark.parametrize(("name", "step"), [("create", 0), ("append", 0), ("append", 1)])
    def test_connections_of_the_parent_of_a_fork(
        self,
        faulty: FaultyClient,
        faulty_store: DatastoreStore,
        store: DatastoreStore,
        name: str,
        step: int,
    ) -> None:
        """Nothing was sent over them, so also a commit goes over the next one."""
        case = CASES[name]
        version = case.prepare(store)
        faulty.faults = [*[None] * step, *of_the_parent()]
        case.verb(faulty_store, version)
        again = [case.rpcs[step]] * 2
        assert faulty.calls == [*case.rpcs[:step], *again, *case.rpcs[step:]]

    @pytest.mark.parametrize("fault", of_the_parent(), ids=["written", "closed"])
    def test_nothing_but_connections_of_the_parent(
        self, faulty: FaultyClient, faulty_store: DatastoreStore, fault: Fault
    ) -> None:
        faulty.faults = [fault] * 1000
        with pytest.raises(StoreUnavailable, match="Stream removed") as caught:
            faulty_store.create("ann", b"first", 60)
        assert (caught.value.sent, caught.value.slow) == (False, False)
        assert len(faulty.calls) > 2

    @pytest.mark.parametrize(
        ("code", "details"),
        [
            (grpc.StatusCode.CANCELLED, "Stream removed (Closed on fork)"),
            (UNAVAILABLE, "failed to connect to all addresses"),
        ],
    )
    def test_a_server_that_speaks_of_connections_has_been_asked(
        self,
        faulty: FaultyClient,
        faulty_store: DatastoreStore,
        code: grpc.StatusCode,
        details: str,
    ) -> None:
        fault = refused(code, details, local=False)
        trouble = fails(faulty, 0, fault, lambda: faulty_store.create("ann", b"first", 60))
        assert trouble.sent

    @pytest.mark.parametrize("code", CODES, ids=[code.name for code in CODES])
    def test_every_other_error(
        self,
        faulty: FaultyClient,
        faulty_store: DatastoreStore,
        store: DatastoreStore,
        code: grpc.StatusCode,
    ) -> None:
        """With advice, and with the rows in its words unless ids are hidden."""
        lock_id = "".join(["ann", "smith"])  # not in the lines of a traceback
        details = f'contention on (app=x, UserLockLease, "userlock={lock_id}")'
        said = []
        for show_ids in ("plain", "masked"):
            userlock.configure(show_ids=show_ids)
            faulty.faults[:] = [refused(code, details)] * 1000
            with pytest.raises(StoreUnavailable) as caught:
                faulty_store.remove(lock_id, 7)
            trouble = caught.value
            assert isinstance(trouble, RecordRefused) == (code in OF_ONE_RECORD)
            assert (trouble.sent, trouble.slow) == (code not in OF_ONE_RECORD, code is UNAVAILABLE)
            said.append("".join(traceback.format_exception(trouble)))
            for each in (code.name, "datastore emulator/(default)", ADVICE.get(code, "")):
                assert each in said[-1]
        plain, masked = said
        assert lock_id in plain
        assert lock_id not in masked

    def test_without_credentials_nothing_was_sent(self) -> None:
        def no_credentials() -> object:
            raise OSError("no project")

        store = DatastoreStore(client_factory=no_credentials)
        for verb in (
            lambda: store.create("ann", b"first", 60),
            lambda: store.read("ann"),
            lambda: store.swap("ann", 1, b"next", 60),
            lambda: store.remove("ann", 1),
            lambda: store.append("ann", b"\nline"),
        ):
            with pytest.raises(StoreUnavailable, match="no client: no project") as caught:
                verb()
            assert (caught.value.sent, caught.value.slow) == (False, False)
        store.close()


class TestTheRowAfterwards:
    """The reply to the RPC that changes the row is lost."""

    @pytest.mark.parametrize("code", [UNAVAILABLE, SLOW], ids=["broken", "slow"])
    def test_create(
        self,
        faulty: FaultyClient,
        faulty_store: DatastoreStore,
        store: DatastoreStore,
        code: grpc.StatusCode,
    ) -> None:
        fails(faulty, 0, lost(code), lambda: faulty_store.create("ann", b"mine", 60))
        assert faulty.calls == ["commit"], "create is sent once"
        assert read(store).record == b"mine"

    def test_create_over_a_dead_row(
        self, faulty: FaultyClient, faulty_store: DatastoreStore, store: DatastoreStore
    ) -> None:
        case = CASES["create, over a dead row"]
        case.prepare(store)
        fails(faulty, 2, lost(UNAVAILABLE), lambda: case.verb(faulty_store, None))
        assert faulty.calls == case.rpcs
        assert read(store).record == b"mine"

    def test_swap_and_remove(
        self, faulty: FaultyClient, faulty_store: DatastoreStore, store: DatastoreStore
    ) -> None:
        version = store.create("ann", b"first", 60)
        fails(faulty, 0, lost(SLOW), lambda: faulty_store.swap("ann", version, b"mine", 60))
        assert faulty.calls == ["commit"], "swap is sent once"
        version = read(store).version
        assert read(store).record == b"mine"
        fails(faulty, 0, lost(UNAVAILABLE), lambda: faulty_store.remove("ann", version))
        assert faulty.calls == ["commit"], "remove is sent once"
        assert store.read("ann") is None

    @pytest.mark.parametrize("name", ["create", "swap", "remove"])
    def test_a_slow_command_may_be_carried_out_later(
        self, faulty: FaultyClient, faulty_store: DatastoreStore, store: DatastoreStore, name: str
    ) -> None:
        version = CASES[name].prepare(store)

        def version_now() -> object:
            stored = store.read("ann")
            return None if stored is None else stored.version

        before = version_now()
        trouble = fails(
            faulty, 0, faulty.late_fault(), lambda: CASES[name].verb(faulty_store, version)
        )
        assert trouble.slow
        assert version_now() == before
        faulty.deliver()
        assert version_now() != before

    @pytest.mark.parametrize("name", ["swap", "remove"])
    def test_a_late_command_harms_no_other_holder(
        self, faulty: FaultyClient, faulty_store: DatastoreStore, store: DatastoreStore, name: str
    ) -> None:
        version = CASES[name].prepare(store)
        fails(faulty, 0, faulty.late_fault(), lambda: CASES[name].verb(faulty_store, version))
        assert store.remove("ann", version)
        assert store.create("ann", b"another's", 60) is not None
        faulty.deliver()
        assert read(store).record == b"another's"
