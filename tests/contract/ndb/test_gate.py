"""The gate at the wire: a write without a ticket is not sent, whatever its way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.datastore_v1.types import entity as entity_types
from google.cloud.ndb import _datastore_api, tasklets

import userlock
from tests.contract.ndb.actions import Elsewhere
from tests.contract.ndb.gates import (
    BELOW_THE_MODEL,
    BY_HAND,
    OPERATIONS,
    SENDERS,
    Simple,
    check_refusal,
    error_of,
    is_missing,
    mutation,
    request_of,
    stale,
    stored,
)
from tests.contract.ndb.models import Learner, Plain
from tests.contract.ndb.servers import Wire
from userlock.ndb import stub, wire
from userlock.testing import allow_unlocked


@pytest.fixture
def key(context: Any) -> Any:
    """Return the key of an entity that exists."""
    Simple(id="ann").put()
    context.clear_cache()
    return ndb.Key(Simple, "ann")


Write = Callable[[Any], Any]

EACH_OPERATION = pytest.mark.parametrize("operation", OPERATIONS)
A_PUT_AND_A_DELETE = pytest.mark.parametrize(
    ("write", "deletes"),
    [BELOW_THE_MODEL[f"_datastore_api.{name}"] for name in ("put", "delete")],
    ids=["put", "delete"],
)


class TestByHand:
    @pytest.mark.parametrize(("sender", "operation"), BY_HAND)
    def test_nothing_is_sent(self, key: Any, server: Wire, sender: str, operation: str) -> None:
        with pytest.raises(userlock.WriteNotFenced) as caught:
            SENDERS[sender](request_of(mutation(operation, key)))
        check_refusal(caught.value, key, deleting=operation == "delete")
        assert server.names == []
        assert stored(Simple) == 0

    @EACH_OPERATION
    def test_in_a_transaction(self, key: Any, operation: str) -> None:
        """It is not committed, and its other writes are not stored."""

        def write() -> None:
            Simple(id="bob").put()
            Plain(id="bob").put()
            transaction = ndb.get_context().transaction
            ndb.get_context().client.stub.commit(
                request_of(mutation(operation, key), transaction=transaction)
            )

        with pytest.raises(userlock.WriteNotFenced) as caught:
            ndb.transaction(write)
        check_refusal(caught.value, key, deleting=operation == "delete")
        assert stored(Simple) == 0
        assert is_missing(Simple, "bob")
        assert is_missing(Plain, "bob")


class TestBelowTheModel:
    @A_PUT_AND_A_DELETE
    def test_others_of_the_same_batch_land(self, key: Any, write: Write, deletes: bool) -> None:
        others = [Simple(id="bob").put_async(), Simple().put_async(), Plain(id="bob").put_async()]
        past = write(key)
        others += [ndb.Key(Plain, "cy").delete_async(), Simple(id="dee").put_async()]
        assert [error_of(other) for other in others] == [None] * 5
        with pytest.raises(userlock.WriteNotFenced):
            past.result()
        assert stored(Simple) == 0
        assert Simple.query().count() == 4
        assert Plain.get_by_id("bob", use_cache=False) is not None

    @A_PUT_AND_A_DELETE
    def test_no_setting_opens_the_gate(self, key: Any, write: Write, deletes: bool) -> None:
        """Settings control checks and fencing, and not the gate."""
        userlock.configure(enforcement="off", fencing=False)
        with allow_unlocked("a test"), pytest.raises(userlock.WriteNotFenced):
            write(key).result()
        assert stored(Simple) == 0


def open_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything pass."""
    monkeypatch.setattr(stub._Commit, "_plan_of", lambda *_: None)


@pytest.mark.usefixtures("context")
def test_another_class_of_the_kind() -> None:
    """ndb loads entities as the class that was defined last."""

    class Rivalled(userlock.Model):
        _write_policy = Simple._write_policy
        points = ndb.IntegerProperty()

    def define() -> Any:
        class Rivalled(ndb.Model):
            points = ndb.IntegerProperty()

        return Rivalled

    rival = define()
    assert rival._get_kind() == Rivalled._get_kind()
    with pytest.raises(userlock.WriteNotFenced) as caught:
        rival(id="ann", points=1).put()
    assert f"{__name__}.{rival.__qualname__} has the kind of a userlock model" in str(caught.value)
    assert "To fix it: derive it from `userlock.Model`" in str(caught.value)


@EACH_OPERATION
def test_without_the_gate_those_by_hand_land(
    key: Any, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The negative control: all of these land."""
    open_gate(monkeypatch)
    if operation == "insert":
        with allow_unlocked("arranging data"):
            key.delete()
    ndb.get_context().client.stub.commit(request_of(mutation(operation, key)))
    assert stored(Simple) == (None if operation == "delete" else 7)


class TestMutationsByHand:
    """Mutations beside others in one request."""

    def test_a_new_entity_without_an_id(self, server: Wire, context: Any) -> None:
        new = datastore_types.Mutation(
            upsert=entity_types.Entity(key={"path": [{"kind": "Simple"}]})
        )
        with pytest.raises(userlock.WriteNotFenced) as caught:
            context.client.stub.commit(request_of(new))
        assert "test_gate.py" in str(caught.value.put_at)
        assert "Simple" in str(caught.value)
        assert server.names == []

    @pytest.mark.parametrize(
        "place",
        [
            {"parent": ndb.Key("Parent", 7, project="emulator", namespace="", database="")},
            {"project": "another"},
            {"namespace": "tenant"},
        ],
        ids=["below another", "of another project", "in a namespace"],
    )
    def test_the_error_names_the_key_as_it_is(
        self, server: Wire, context: Any, place: dict[str, Any]
    ) -> None:
        key = ndb.Key("Simple", 5, **place)
        with pytest.raises(userlock.WriteNotFenced) as caught:
            context.client.stub.commit(request_of(mutation("upsert", key)))
        check_refusal(caught.value, key)
        assert server.names == []

    def test_others_land(self, key: Any, server: Wire) -> None:
        """The caller of the RPC itself gets the error of the write that was not sent."""
        others = [mutation("upsert", ndb.Key(Plain, name)) for name in ("bob", "cy")]
        with pytest.raises(userlock.WriteNotFenced) as caught:
            ndb.get_context().client.stub.commit(
                request_of(others[0], mutation("upsert", key), others[1])
            )
        check_refusal(caught.value, key)
        ((name, request),) = server.rpcs
        assert (name, len(request.mutations)) == ("commit", 2)
        assert {each.key.id() for each in Plain.query()} == {"bob", "cy"}

    def test_of_a_single_use_transaction_none_lands(self, key: Any) -> None:
        single = datastore_types.TransactionOptions(read_write={})
        other = mutation("upsert", ndb.Key(Plain, "bob"))
        with pytest.raises(userlock.WriteNotFenced):
            ndb.get_context().client.stub.commit(
                request_of(other, mutation("upsert", key), single_use_transaction=single)
            )
        assert is_missing(Plain, "bob")

    @pytest.mark.parametrize("number", [1, 2**64 - 1])
    def test_a_number_that_is_no_ticket(self, key: Any, server: Wire, number: int) -> None:
        forged = mutation("upsert", key)
        wire.put_number(forged.upsert._pb.key, number)
        with pytest.raises(userlock.WriteNotFenced):
            ndb.get_context().client.stub.commit(request_of(forged))
        assert server.names == []

    @pytest.mark.parametrize("other", ["name", "namespace"])
    def test_a_ticket_is_good_for_its_own_entity_alone(
        self, key: Any, monkeypatch: pytest.MonkeyPatch, other: str
    ) -> None:
        def other_key(entity_pb: Any) -> Any:
            changed = entity_types.Entity(entity_pb)
            if other == "name":
                changed.key.path[-1].name = key.id()
            else:
                changed.key.partition_id.namespace_id = "tenant"
            return changed

        replace_puts(monkeypatch, other_key)
        with pytest.raises(userlock.WriteNotFenced) as caught:
            Simple(id="bob", points=7).put()
        expected = key if other == "name" else ndb.Key(Simple, "bob", namespace="tenant")
        assert caught.value.key == expected
        assert (stored(Simple), stored(Simple, "bob")) == (0, None)


# --- another ndb, which fills its batches in another way ------------------------------------


def _into(batch: Any, found: Any) -> Any:
    future = tasklets.Future("write")
    batch.mutations.append(found)
    batch.futures.append(future)
    if isinstance(batch, _datastore_api._TransactionalCommitBatch):
        future.set_result(None)
    return future


_BATCHES = (_datastore_api._NonTransactionalCommitBatch, _datastore_api._TransactionalCommitBatch)


def replace_puts(monkeypatch: pytest.MonkeyPatch, changed: Callable[[Any], Any]) -> None:
    """Let batches put what `changed` makes of an entity's message."""

    def put(self: Any, entity_pb: Any) -> Any:
        return _into(self, datastore_types.Mutation(upsert=changed(entity_pb)))

    for batch in _BATCHES:
        monkeypatch.setattr(batch, "put", put)


def replace_deletes(monkeypatch: pytest.MonkeyPatch, changed: Callable[[Any], Any]) -> None:
    """Let batches delete what `changed` makes of a key."""

    def delete(self: Any, key: Any) -> Any:
        return _into(self, datastore_types.Mutation(delete=changed(key)))

    for batch in _BATCHES:
        monkeypatch.setattr(batch, "delete", delete)


def _without_ticket(message: Any) -> Any:
    """Return the same entity, or key, in a message of its own, with what the schema knows."""
    copied = type(message)(message)
    copied._pb.DiscardUnknownFields()
    return copied


def other_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let batches make the messages of their puts themselves."""
    replace_puts(monkeypatch, _without_ticket)


def other_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another helper make the messages."""
    entity_to_protobuf = _datastore_api.helpers.entity_to_protobuf
    monkeypatch.setattr(
        _datastore_api,
        "helpers",
        SimpleNamespace(
            entity_to_protobuf=lambda entity: _without_ticket(entity_to_protobuf(entity))
        ),
    )


def no_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts do not go through the function that is wrapped."""
    monkeypatch.setattr(_datastore_api, "put", _datastore_api.put.__wrapped__)


def other_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let batches make the messages of their deletes themselves."""
    replace_deletes(monkeypatch, lambda key: _without_ticket(key.to_protobuf()))


#: Changes of ndb that lose the ticket of each put.
CHANGES = [other_messages, other_helpers, no_tickets]

Change = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("change", CHANGES)
class TestPuts:
    def test_put(
        self, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, change: Change
    ) -> None:
        old = stale(Simple, elsewhere)
        with pytest.raises(userlock.StaleWriteError):
            old.put()  # the control: its ticket arrives
        change(monkeypatch)
        with pytest.raises(userlock.WriteNotFenced) as caught:
            old.put()
        check_refusal(caught.value, old.key)
        assert stored(Simple) == 50

    def test_under_a_lock(self, monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
        """It is raised even if the code does not ask for the error."""
        change(monkeypatch)
        with pytest.raises(userlock.WriteNotFenced) as caught, userlock.global_lock("ann"):
            Learner(id="ann").put_async()
        assert caught.value.key == ndb.Key(Learner, "ann")
        assert stored(Learner) is None

    def test_a_transaction_that_ignores_it(
        self, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, change: Change
    ) -> None:
        """This holds for a lock that is left within it, too."""
        old = stale(Simple, elsewhere)
        change(monkeypatch)

        def careless() -> None:
            with contextlib.suppress(userlock.WriteNotFenced), userlock.global_lock("ann"):
                old.put()
                Learner(id="ann").put_async()

        with pytest.raises(userlock.WriteNotFenced):
            ndb.transaction(careless)
        assert (stored(Simple), stored(Learner)) == (50, None)


@pytest.mark.usefixtures("context")
class TestOneOfABatch:
    """The ticket of one write alone is lost."""

    @pytest.fixture(autouse=True)
    def _lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        replace_puts(
            monkeypatch,
            lambda message: (
                _without_ticket(message) if message.key.path[-1].name == "lost" else message
            ),
        )

    def put(self) -> list[Any]:
        names = ["ann", "lost", "bob"]
        futures = ndb.put_multi_async([*(Simple(id=name) for name in names), Plain(id="cy")])
        return [error_of(future) for future in futures]

    def check(self, errors: list[Any]) -> None:
        assert [*map(type, errors)] == [
            *(type(None), userlock.WriteNotFenced),
            *(type(None), type(None)),
        ]
        check_refusal(errors[1], ndb.Key(Simple, "lost"))
        assert {each.key.id() for each in Simple.query()} == {"ann", "bob"}
        assert Plain.get_by_id("cy", use_cache=False) is not None

    def test_the_others_land(self, server: Wire) -> None:
        self.check(self.put())
        assert server.names[:2] == ["commit", "commit"], "creations, and others"

    def test_they_can_be_put_on(self) -> None:
        """Each knows the version that it landed as."""
        entities = [Simple(id=name) for name in ("ann", "lost", "bob")]
        error_of(ndb.put_multi_async(entities)[1])
        for entity in (entities[0], entities[2]):
            entity.points = 9
            entity.put()
        assert (stored(Simple, "ann"), stored(Simple, "bob")) == (9, 9)


@pytest.mark.usefixtures("context")
def test_a_delete_that_loses_its_ticket_under_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    with userlock.global_lock("ann"):
        Learner(id="ann").put()
    other_deletes(monkeypatch)
    with pytest.raises(userlock.WriteNotFenced) as caught, userlock.global_lock("ann"):
        ndb.Key(Learner, "ann").delete_async()
    check_refusal(caught.value, ndb.Key(Learner, "ann"), deleting=True)
    assert "deleted at: " in str(caught.value)
    assert stored(Learner) == 0
