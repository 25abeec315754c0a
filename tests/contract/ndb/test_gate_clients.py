"""The gate stands before every client, however and whenever it was made."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.datastore_v1.types import datastore as datastore_types

import userlock
from tests.contract.ndb.actions import Elsewhere
from tests.contract.ndb.gates import (
    BELOW_THE_MODEL,
    SENDERS,
    Simple,
    check_refusal,
    mutation,
    request_of,
    stale,
    stored,
)
from tests.interpreters import run_python
from userlock.ndb import capabilities, stub
from userlock_emulator import Emulator

# --- every client -----------------------------------------------------------------------------


class Tracer:
    """An application's wrapper around a stub. Records the RPCs and their answers."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        self.calls: list[str] = []
        self.answers: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.wrapped, name)

        def future(request: Any, **options: Any) -> Any:
            self.calls.append(name)
            call = method.future(request, **options)
            call.add_done_callback(self._note)
            return call

        return SimpleNamespace(future=future)

    def _note(self, call: Any) -> None:
        if call.exception() is None:
            self.answers.append(call.result())


class Derived(ndb.Client):
    """A client of the application's."""


class WithProperty(ndb.Client):
    """A client that keeps its stub in a place of its own."""

    @property
    def stub(self) -> Any:
        return self.__dict__["_own_stub"]

    @stub.setter
    def stub(self, value: Any) -> None:
        self.__dict__["_own_stub"] = Tracer(value)


class WithClassAttribute(ndb.Client):
    """A client class that has a `stub` of its own, for type checkers."""

    stub: Any = None


class WithoutHost:
    """The parts of a client that `ndb.Context` needs, and nothing else."""

    def __init__(self, client: Any) -> None:
        self.project, self.namespace, self.database = client.project, None, client.database
        self.stub = client.stub._userlock_stub


def _traced() -> Any:
    client = ndb.Client()
    client.stub = Tracer(client.stub)
    return client


def _traced_behind() -> Any:
    client = ndb.Client()
    client.stub = Tracer(client.stub._userlock_stub)
    return client


def _made_before() -> Any:
    """Put the bare stub back, as if there had been no userlock then."""
    client = ndb.Client()
    vars(client)["stub"] = client.stub._userlock_stub
    return client


CLIENTS: dict[str, Callable[[], Any]] = {
    "as ever": ndb.Client,
    "of a subclass": Derived,
    "of a subclass with a property": WithProperty,
    "of a subclass with a class attribute": WithClassAttribute,
    "with a tracer": _traced,
    "with a tracer behind the gate": _traced_behind,
    "made before the import": _made_before,
    "duck-typed": lambda: WithoutHost(ndb.Client()),
}


@pytest.fixture
def _environment(ndb_client: ndb.Client, service: userlock.LockService) -> None:
    """Let clients talk to the emulator."""
    capabilities.honours_base_version(ndb_client)


@contextlib.contextmanager
def context_of(client: Any) -> Iterator[Any]:
    """Give an ndb context of a client, which may be no `ndb.Client`."""
    with ndb.context.Context(client).use() as context:
        yield context


@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS.keys())
class TestEveryClient:
    def test_a_write_past_the_model_is_refused(self, make: Callable[[], Any]) -> None:
        client = make()
        with context_of(client):
            key = Simple(id="ann").put()
            for write, deletes in BELOW_THE_MODEL.values():
                with pytest.raises(userlock.WriteNotFenced) as caught:
                    write(key).result()
                check_refusal(caught.value, key, deleting=deletes)
            for name in ("make_call", "_datastore_commit", "_datastore_api.stub()"):
                with pytest.raises(userlock.WriteNotFenced):
                    SENDERS[name](request_of(mutation("upsert", key)))
            if not isinstance(client, (WithProperty, WithClassAttribute, WithoutHost)):
                # The client itself gives the gate, too; other stubs are gated where ndb takes them.
                assert type(client.stub) is stub.Gate
                assert client.stub is client.stub
                with pytest.raises(userlock.WriteNotFenced):
                    client.stub.commit(request_of(mutation("upsert", key)))
            assert stored(Simple) == 0

    def test_a_stale_write_is_refused(self, make: Callable[[], Any], elsewhere: Elsewhere) -> None:
        with context_of(make()):
            old = stale(Simple, elsewhere)
            with pytest.raises(userlock.StaleWriteError):
                old.put()
            with pytest.raises(userlock.StaleWriteError):
                ndb.transaction(old.put)
            assert stored(Simple) == 50

    def test_an_entity_that_was_read_can_be_put(self, make: Callable[[], Any]) -> None:
        with context_of(make()):
            Simple(id="ann").put()
            by_query = Simple.query().get()
            by_key = Simple.get_by_id("ann", use_cache=False)
            ndb.get_context().clear_cache()
            by_key.points = 1
            by_key.put()
            with pytest.raises(userlock.StaleWriteError):
                by_query.put()

            def add() -> None:
                entity = Simple.get_by_id("ann")
                entity.points += 1
                entity.put()
                Simple().put()

            ndb.transaction(add)
            assert stored(Simple) == 2
            assert Simple.query().count() == 2
            ndb.Key(Simple, "ann").delete()
            assert stored(Simple) is None


@pytest.mark.usefixtures("_environment")
class TestTracers:
    @pytest.mark.parametrize("read", [lambda: stored(Simple), lambda: Simple.query().get()])
    def test_they_see_messages(self, read: Callable[[], Any]) -> None:
        """As the application's wrappers do without userlock: `type(answer).pb(answer)`."""
        client = _traced()
        tracer = client.stub._userlock_stub
        with context_of(client):
            Simple(id="ann").put()
            tracer.answers.clear()
            read()
        (answer,) = tracer.answers
        assert type(answer) in (datastore_types.LookupResponse, datastore_types.RunQueryResponse)

    def test_a_tracer_with_a_thread_of_its_own(self) -> None:
        """It sends requests that have passed the gate."""

        class Threaded(Tracer):
            def __getattr__(self, name: str) -> Any:
                method = getattr(self.wrapped, name)

                def future(request: Any, **options: Any) -> Any:
                    return pool.submit(lambda: method.future(request, **options).result())

                return SimpleNamespace(future=future)

        client = ndb.Client()
        client.stub = Threaded(client.stub)
        with ThreadPoolExecutor() as pool, context_of(client):
            Simple(id="ann", points=3).put()
            assert stored(Simple) == 3

    def test_a_tracer_that_writes_by_itself(self) -> None:
        """Another mutation that it sends is its own write, and has no ticket."""

        class Auditing(Tracer):
            def __getattr__(self, name: str) -> Any:
                method = getattr(self.wrapped, name)

                def future(request: Any, **options: Any) -> Any:
                    if name == "commit":
                        record = request_of(mutation("upsert", ndb.Key(Simple, "audit")))
                        with contextlib.suppress(userlock.WriteNotFenced):
                            method.future(record, **options).result()
                    return method.future(request, **options)

                return SimpleNamespace(future=future)

        client = ndb.Client()
        client.stub = Auditing(client.stub)
        with context_of(client):
            Simple(id="ann", points=3).put()
            assert (stored(Simple), stored(Simple, "audit")) == (3, None)

    def test_a_client_without_a_stub(self) -> None:
        client = ndb.Client()
        del client.stub
        assert not hasattr(client, "stub")
        del client.stub  # once is enough
        client.stub = SimpleNamespace(lookup="look")
        assert hasattr(client, "stub")


#: A process in which a client and a context are older than userlock.
_OLDER = """
import json
from google.cloud import ndb
from google.cloud.ndb import _datastore_api, _options

class Derived(ndb.Client):
    pass

def tried(action):
    try:
        return repr(action())
    except Exception as error:
        return type(error).__name__

clients = [ndb.Client(), Derived()]
old = clients[0].stub
clients[1].stub = Wrapper = type("Wrapper", (), {
    "__getattr__": lambda self, name: getattr(self.wrapped, name), "wrapped": clients[1].stub
})()
results = []
for number, client in enumerate(clients):
    with client.context():
        import userlock

        if not number:
            class Simple(userlock.Model):
                _write_policy = userlock.WritePolicy.unsafe("there is nothing to get wrong")
                points = ndb.IntegerProperty(default=0)

        name = f"ann {number}"
        key = Simple(id=name).put()
        old, new = key.get(use_cache=False), key.get(use_cache=False)
        new.points = 1
        request = _datastore_api.datastore_pb2.CommitRequest(
            project_id=client.project,
            mode=_datastore_api.datastore_pb2.CommitRequest.Mode.NON_TRANSACTIONAL,
            mutations=[{"delete": key._key.to_protobuf()}],
        )
        results.append([
            tried(lambda: new.put() == key),
            tried(old.put),
            tried(lambda: _datastore_api.delete(key._key, _options.Options()).result()),
            tried(lambda: ndb.transaction(
                lambda: _datastore_api.delete(key._key, _options.Options()))),
            tried(lambda: client.stub.commit(request)),
            tried(lambda: client.stub.commit.future(request).result()),
            key.get(use_cache=False).points,
        ])
print(json.dumps(results))
"""


def test_clients_and_contexts_that_are_older_than_the_import(datastore: Emulator) -> None:
    """In a process of its own, as this one has imported userlock."""
    datastore.reset()
    process = run_python("-W", "ignore", "-c", _OLDER, env=datastore.env)
    assert process.returncode == 0, process.stderr
    expected = ["True", "StaleWriteError", *["WriteNotFenced"] * 4, 1]
    assert json.loads(process.stdout) == [expected, expected]
