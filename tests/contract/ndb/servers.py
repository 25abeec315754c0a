"""Relays between an `ndb.Client` and its server: they count RPCs, or imitate others; a cache."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

from google.cloud import ndb

from userlock.ndb.stub import Gate

#: The RPCs that read entities.
READS = ("lookup", "run_query", "run_aggregation_query")


class Wire:
    """Replaces `client.stub`.

    Attributes:
        rpcs: the RPCs so far, in order: their names and requests.
    """

    def __init__(self, client: Any) -> None:
        self.rpcs: list[tuple[str, Any]] = []
        self._stub = client.stub
        client.stub = self

    def __getattr__(self, name: str) -> Any:
        return _Rpc(self, name, getattr(self._stub, name))

    @property
    def names(self) -> list[str]:
        """Return the names of the RPCs so far."""
        return [name for name, _ in self.rpcs]

    @property
    def begun(self) -> int:
        """Return how many transactions have been begun, by themselves or with a read."""
        return sum(
            name == "begin_transaction"
            or (name in READS and "new_transaction" in request.read_options)
            for name, request in self.rpcs
        )

    def sent(self, name: str, request: Any) -> Any:
        """Return the request to send instead."""
        self.rpcs.append((name, request))
        return request

    def received(self, name: str, reply: Any) -> Any:
        """Return the reply to give instead."""
        return reply


AnyWire = TypeVar("AnyWire", bound=Wire)


def connect(client: Any, kind: type[AnyWire]) -> AnyWire:
    """Let a client talk to another kind of server. It stands behind the gate, as servers do."""
    stub = client.stub
    while isinstance(stub, (Gate, Wire)):
        stub = stub._userlock_stub if isinstance(stub, Gate) else stub._stub
    server = kind(SimpleNamespace(stub=stub))
    client.stub = server
    return server


class WithoutVersions(Wire):
    """A server that reports no versions."""

    def received(self, name: str, reply: Any) -> Any:
        raw = type(reply).pb(reply)
        if name == "lookup":
            results = [*raw.found, *raw.missing]
        elif name == "run_query":
            results = raw.batch.entity_results
        elif name == "commit":
            results = raw.mutation_results
        else:
            results = []
        for result in results:
            result.ClearField("version")
        return reply


class WithoutBaseVersion(Wire):
    """A server that ignores `base_version`."""

    def sent(self, name: str, request: Any) -> Any:
        request = super().sent(name, request)
        if name == "commit":
            request = type(request)(request)
            for mutation in type(request).pb(request).mutations:
                mutation.ClearField("base_version")
                mutation.ClearField("conflict_resolution_strategy")
        return request


class _Rpc:
    def __init__(self, wire: Wire, name: str, rpc: Any) -> None:
        self._wire = wire
        self._name = name
        self._rpc = rpc

    def __call__(self, request: Any, **options: Any) -> Any:
        reply = self._rpc(self._wire.sent(self._name, request), **options)
        return self._wire.received(self._name, reply)

    def future(self, request: Any, **options: Any) -> _Future:
        call = self._rpc.future(self._wire.sent(self._name, request), **options)
        return _Future(call, lambda reply: self._wire.received(self._name, reply))


class _Future:
    """A call whose reply is changed on its way."""

    def __init__(self, call: Any, received: Callable[[Any], Any]) -> None:
        self._call = call
        self._received = received

    def result(self) -> Any:
        return self._received(self._call.result())

    def exception(self) -> Any:
        return self._call.exception()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._call.add_done_callback(lambda call: callback(self))

    def cancel(self) -> Any:
        return self._call.cancel()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


class EmptyGlobalCache(ndb.global_cache._InProcessGlobalCache):
    """ndb's own in-process one, with nothing in it.

    That one keeps its values for the whole process. A write's lock that was left in it would never
    end: it counts as there when it has expired, too, and ndb tries for ever to take it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[bytes, Any] = {}
