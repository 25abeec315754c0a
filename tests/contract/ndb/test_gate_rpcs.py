"""Requests that pass the gate: the other RPCs, reads, other models."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.datastore_v1.services.datastore.transports import DatastoreGrpcTransport
from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.ndb import _datastore_api

import userlock
from tests.contract.ndb.gates import SENDERS, Send, Simple, mutation, request_of
from tests.contract.ndb.models import Learner, Plain
from tests.contract.ndb.servers import EmptyGlobalCache
from tests.contract.ndb.test_gate import CHANGES, Change, other_deletes
from userlock.ndb import stub


@pytest.fixture
def key(context: Any) -> Any:
    """Return the key of an entity that exists."""
    Simple(id="ann").put()
    context.clear_cache()
    return ndb.Key(Simple, "ann")


# --- RPCs -------------------------------------------------------------------------------------

#: Long-running operations of the Admin API: import and export. Nothing of ndb's.
_OPERATIONS = {"cancel_operation", "delete_operation", "get_operation", "list_operations"}
#: Of the class of a transport.
_OF_THE_CLASS = {"AUTH_SCOPES", "DEFAULT_HOST", "create_channel"}


class TestRpcs:
    def test_each_rpc_of_the_installed_release_is_known(self) -> None:
        """A new RPC fails here: does it write?"""
        there = {name for name in dir(DatastoreGrpcTransport) if not name.startswith("_")}
        known = {*stub._METHODS, *stub._HARMLESS}
        assert sorted(there - known - _OPERATIONS - _OF_THE_CLASS - {"grpc_channel"}) == []

    @pytest.mark.parametrize("name", [*sorted(_OPERATIONS), "run_dml"])
    def test_an_unknown_one_is_refused(self, context: Any, name: str) -> None:
        called: list[Any] = []
        raw = context.client.stub._userlock_stub
        context.client.stub = SimpleNamespace(**{name: called.append}, lookup=raw.lookup)
        for call in (
            lambda: getattr(context.client.stub, name),
            lambda: _datastore_api.make_call(name, datastore_types.CommitRequest()).result(),
        ):
            with pytest.raises(userlock.WriteNotFenced, match=name) as caught:
                call()
            assert caught.value.key is None
            assert "newer userlock" in str(caught.value)
        assert not called
        assert Simple.get_by_id("ann") is None, "look-ups pass"

    def test_a_missing_one_is_an_attribute_error(self, context: Any) -> None:
        with pytest.raises(AttributeError, match="run_dml"):
            _ = context.client.stub.run_dml

    def test_other_attributes_of_a_transport(self, context: Any) -> None:
        gate = context.client.stub
        raw = gate._userlock_stub
        assert gate.host == raw.host
        with pytest.raises(userlock.WriteNotFenced, match="grpc_channel"):
            _ = gate.grpc_channel  # any RPC could be sent through it
        assert gate.kind == "grpc"
        gate.note = "the application's"
        assert raw.note == "the application's"

    def test_a_copy_of_it_is_a_gate(self, context: Any) -> None:
        assert type(copy.copy(context.client.stub)) is stub.Gate


class TestReadsPass:
    """Read RPCs by hand give the messages that ndb gets."""

    @pytest.mark.parametrize("rpc", ["lookup", "run_query"])
    @pytest.mark.parametrize("at_once", [True, False], ids=["called", "future"])
    def test_reads(self, key: Any, context: Any, rpc: str, at_once: bool) -> None:
        method = getattr(context.client.stub, rpc)
        place = {"project_id": context.client.project, "database_id": context.client.database or ""}
        request: Any = (
            datastore_types.LookupRequest(keys=[key._key.to_protobuf()], **place)
            if rpc == "lookup"
            else datastore_types.RunQueryRequest(query={"kind": [{"name": "Simple"}]}, **place)
        )
        answer = method(request) if at_once else method.future(request).result()
        (found,) = answer.found if rpc == "lookup" else answer.batch.entity_results
        assert found.entity.key.path[-1].name == "ann"
        assert found.version > 0

    def test_a_transaction_and_ids(self, context: Any) -> None:
        stub = context.client.stub
        place = {"project_id": context.client.project, "database_id": context.client.database or ""}
        begun = stub.begin_transaction(datastore_types.BeginTransactionRequest(**place))
        stub.rollback(datastore_types.RollbackRequest(transaction=begun.transaction, **place))
        (allocated,) = stub.allocate_ids(
            datastore_types.AllocateIdsRequest(keys=[{"path": [{"kind": "Simple"}]}], **place)
        ).keys
        assert allocated.path[-1].id
        stub.reserve_ids(datastore_types.ReserveIdsRequest(keys=[allocated], **place))


# --- other models -----------------------------------------------------------------------------


class TestPlainModels:
    """Nothing changes for them."""

    @pytest.mark.parametrize("send", SENDERS.values(), ids=SENDERS.keys())
    def test_the_request_is_sent_unchanged(self, context: Any, send: Send) -> None:
        """And the unchanged answer comes back."""
        sent: list[Any] = []
        answer = datastore_types.CommitResponse()

        class Method:
            def __call__(self, request: Any, **options: Any) -> Any:
                sent.append(request)
                return answer

            def future(self, request: Any, **options: Any) -> Any:
                sent.append(request)
                return SimpleNamespace(
                    result=lambda: answer,
                    exception=lambda: None,
                    add_done_callback=lambda callback: callback(None),
                )

        context.client.stub = SimpleNamespace(commit=Method())
        request = request_of(mutation("upsert", ndb.Key(Plain, "bob")))
        assert send(request) is answer
        if send is not SENDERS["_datastore_commit"]:  # which makes one of its own
            assert sent[0] in (request, request._pb)
            assert sent[0] is request or send is SENDERS["the raw message"]
        assert len(sent) == 1

    @pytest.mark.parametrize("change", [*CHANGES, other_deletes])
    def test_another_ndb(
        self, context: Any, monkeypatch: pytest.MonkeyPatch, change: Change
    ) -> None:
        change(monkeypatch)
        plain = Plain(id="bob")
        for number in range(3):
            plain.number = number
            plain.put()
        ndb.transaction(plain.put)
        assert Plain.get_by_id("bob", use_cache=False).number == 2
        plain.key.delete()
        assert Plain.get_by_id("bob", use_cache=False) is None


# --- no false alarm ---------------------------------------------------------------------------


class TestNoFalseAlarm:
    """A write for the global cache alone makes no mutation."""

    @pytest.fixture(autouse=True)
    def _global_cache(self, context: Any) -> Iterator[None]:
        with context.new(global_cache=EmptyGlobalCache()).use():
            yield

    @pytest.mark.parametrize(
        "put",
        [
            lambda entity: entity.put(use_datastore=False),
            lambda entity: entity.put(use_datastore=0),
            lambda entity: entity.put_async(use_datastore=False).result(),
            lambda entity: ndb.put_multi([entity], use_datastore=False),
        ],
    )
    def test_a_put_to_the_cache(self, put: Send) -> None:
        with userlock.global_lock("ann"):
            put(Learner(id="ann"))
            ndb.Key(Learner, "ann").delete(use_datastore=False)
        ndb.transaction(lambda: put(Simple(id="ann")))

    def test_a_policy_that_changes_meanwhile(self) -> None:
        """The locks and settings that count are those at the start of the write."""
        current = ndb.get_context()
        with userlock.global_lock("ann"), userlock.global_lock("bob"):
            current.set_datastore_policy(False)
            Learner(id="ann").put_async().result()
            ndb.Key(Learner, "bob").delete()
            current.set_datastore_policy(None)

        def in_transaction() -> None:
            current = ndb.get_context()
            current.set_datastore_policy(False)
            Simple(id="ann").put_async().result()  # a delete fails in ndb 2.3
            current.set_datastore_policy(None)

        ndb.transaction(in_transaction)

    def test_a_policy_that_fails(self) -> None:
        """Its error is the write's, as in ndb, and not that of beginning it."""

        def broken(key: Any) -> bool:
            raise ZeroDivisionError

        ndb.get_context().set_datastore_policy(broken)
        for begun in (Simple(id="ann").put_async(), ndb.Key(Simple, "ann").delete_async()):
            with pytest.raises(ZeroDivisionError):
                begun.result()
