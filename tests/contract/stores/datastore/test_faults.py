"""Each fault of each RPC of each verb: the verb's error, and the row afterwards."""

from __future__ import annotations

import traceback

import grpc
import pytest

import userlock
from tests.contract.stores.datastore.cases import CASES, STEPS, Case, fails
from tests.contract.stores.datastore.conftest import Rig, read
from tests.contract.stores.datastore.faulty import (
    Fault,
    FaultyClient,
    lost,
    not_sent,
    of_the_parent,
    refused,
)
from userlock.lock.store import RecordRefused, StoreUnavailable
from userlock.stores.datastore import TIMEOUT, DatastoreStore

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
    def test_round_trips_and_no_transaction(self, rig: Rig, case: Case) -> None:
        case.verb(rig.faulty_store, case.prepare(rig.store))
        assert rig.faulty.calls == case.rpcs
        for name, request in zip(rig.faulty.calls, rig.faulty.requests, strict=True):
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
        assert faulty.timeouts[-1] == TIMEOUT / 4


class TestErrors:
    @pytest.mark.parametrize(("case", "step"), STEPS)
    def test_each_rpc_that_fails(self, rig: Rig, case: Case, step: int) -> None:
        """Without a reply in time, over a broken connection, and without any."""
        version = case.prepare(rig.store)
        broken = refused(UNAVAILABLE, "Socket closed", local=True)
        for fault, expected in (
            (refused(SLOW), (True, True)),
            (broken, (True, True)),
            (not_sent(), (step > 0, False)),  # certain where nothing was sent before it
        ):
            trouble = fails(rig.faulty, step, fault, lambda: case.verb(rig.faulty_store, version))
            assert (trouble.sent, trouble.slow) == expected
            if expected == (True, True) and fault is not broken:
                assert len(rig.faulty.calls) == step + 1, "a slow server is not asked again"

    def test_no_connection_for_the_second_try(self, rig: Rig) -> None:
        """Behind a front end, the first one may yet be carried out."""
        rig.faulty.faults = [refused(UNAVAILABLE, "Socket closed", local=True), *[not_sent()] * 9]
        with pytest.raises(StoreUnavailable, match="failed to connect") as caught:
            rig.faulty_store.read("ann")
        assert len(rig.faulty.calls) == 2
        assert (caught.value.sent, caught.value.slow) == (True, True)

    @pytest.mark.parametrize(("name", "step"), [("create", 0), ("append", 0), ("append", 1)])
    def test_connections_of_the_parent_of_a_fork(self, rig: Rig, name: str, step: int) -> None:
        """Nothing was sent over them, so also a commit goes over the next one."""
        case = CASES[name]
        version = case.prepare(rig.store)
        rig.faulty.faults = [*[None] * step, *of_the_parent()]
        case.verb(rig.faulty_store, version)
        again = [case.rpcs[step]] * 2
        assert rig.faulty.calls == [*case.rpcs[:step], *again, *case.rpcs[step:]]

    @pytest.mark.parametrize("fault", of_the_parent(), ids=["written", "closed"])
    def test_nothing_but_connections_of_the_parent(self, rig: Rig, fault: Fault) -> None:
        rig.faulty.faults = [fault] * 1000
        with pytest.raises(StoreUnavailable, match="Stream removed") as caught:
            rig.faulty_store.create("ann", b"first", 60)
        assert (caught.value.sent, caught.value.slow) == (False, False)
        assert len(rig.faulty.calls) > 2

    @pytest.mark.parametrize(
        ("code", "details"),
        [
            (grpc.StatusCode.CANCELLED, "Stream removed (Closed on fork)"),
            (UNAVAILABLE, "failed to connect to all addresses"),
        ],
    )
    def test_a_server_that_speaks_of_connections_has_been_asked(
        self, rig: Rig, code: grpc.StatusCode, details: str
    ) -> None:
        fault = refused(code, details, local=False)
        trouble = fails(rig.faulty, 0, fault, lambda: rig.faulty_store.create("ann", b"first", 60))
        assert trouble.sent

    @pytest.mark.parametrize("code", CODES, ids=[code.name for code in CODES])
    def test_every_other_error(self, rig: Rig, code: grpc.StatusCode) -> None:
        """With advice, and with the rows in its words unless ids are hidden."""
        lock_id = "".join(["ann", "smith"])  # not in the lines of a traceback
        details = f'contention on (app=x, UserLockLease, "userlock={lock_id}")'
        said = []
        for show_ids in ("plain", "masked"):
            userlock.configure(show_ids=show_ids)
            rig.faulty.faults[:] = [refused(code, details)] * 1000
            with pytest.raises(StoreUnavailable) as caught:
                rig.faulty_store.remove(lock_id, 7)
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
    def test_create(self, rig: Rig, code: grpc.StatusCode) -> None:
        fails(rig.faulty, 0, lost(code), lambda: rig.faulty_store.create("ann", b"mine", 60))
        assert rig.faulty.calls == ["commit"], "create is sent once"
        assert read(rig.store).record == b"mine"

    def test_create_over_a_dead_row(self, rig: Rig) -> None:
        case = CASES["create, over a dead row"]
        case.prepare(rig.store)
        fails(rig.faulty, 2, lost(UNAVAILABLE), lambda: case.verb(rig.faulty_store, None))
        assert rig.faulty.calls == case.rpcs
        assert read(rig.store).record == b"mine"

    def test_swap_and_remove(self, rig: Rig) -> None:
        version = rig.store.create("ann", b"first", 60)
        fails(rig.faulty, 0, lost(SLOW), lambda: rig.faulty_store.swap("ann", version, b"mine", 60))
        assert rig.faulty.calls == ["commit"], "swap is sent once"
        version = read(rig.store).version
        assert read(rig.store).record == b"mine"
        fails(rig.faulty, 0, lost(UNAVAILABLE), lambda: rig.faulty_store.remove("ann", version))
        assert rig.faulty.calls == ["commit"], "remove is sent once"
        assert rig.store.read("ann") is None

    @pytest.mark.parametrize("name", ["create", "swap", "remove"])
    def test_a_slow_command_may_be_carried_out_later(self, rig: Rig, name: str) -> None:
        version = CASES[name].prepare(rig.store)

        def version_now() -> object:
            stored = rig.store.read("ann")
            return None if stored is None else stored.version

        before = version_now()
        trouble = fails(
            rig.faulty,
            0,
            rig.faulty.late_fault(),
            lambda: CASES[name].verb(rig.faulty_store, version),
        )
        assert trouble.slow
        assert version_now() == before
        rig.faulty.deliver()
        assert version_now() != before

    @pytest.mark.parametrize("name", ["swap", "remove"])
    def test_a_late_command_harms_no_other_holder(self, rig: Rig, name: str) -> None:
        version = CASES[name].prepare(rig.store)
        fails(
            rig.faulty,
            0,
            rig.faulty.late_fault(),
            lambda: CASES[name].verb(rig.faulty_store, version),
        )
        assert rig.store.remove("ann", version)
        assert rig.store.create("ann", b"another's", 60) is not None
        rig.faulty.deliver()
        assert read(rig.store).record == b"another's"
