"""A Datastore client whose RPCs fail as planned, in front of a real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

#: A fault of one RPC: gets a function that carries it out, returns or raises.
Fault = Callable[[Callable[[], Any]], Any]


class RpcError(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str, *, local: bool = True) -> None:
        super().__init__(details)
        self._code = code
        self._details = details
        self._local = local

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self._local else (("server", "a server"),)


def lost(code: grpc.StatusCode, details: str = "Socket closed") -> Fault:
    """Return a fault: the RPC is carried out, and the reply is lost."""

    def fault(carry_out: Callable[[], Any]) -> Any:
        carry_out()
        raise RpcError(code, details)

    return fault


def refused(code: grpc.StatusCode, details: str = "", *, local: bool = False) -> Fault:
    """Return a fault: the RPC is not carried out."""

    def fault(carry_out: Callable[[], Any]) -> Any:
        raise RpcError(code, details, local=local)

    return fault


def not_sent() -> Fault:
    """Return a fault: there is no connection."""
    details = "failed to connect to all addresses; last error: Connection refused"
    return refused(grpc.StatusCode.UNAVAILABLE, details, local=True)


def of_the_parent() -> tuple[Fault, Fault]:
    """Return both errors of grpcio 1.85 for a connection made before the fork."""
    written = "Stream removed (sendmsg: Wrong file descriptor generation)"
    return (
        refused(grpc.StatusCode.UNAVAILABLE, written, local=True),
        refused(grpc.StatusCode.CANCELLED, "Stream removed (Closed on fork)", local=True),
    )


def preceded_by(action: Callable[[], object]) -> Fault:
    """Return a fault: something else happens before the RPC is carried out."""

    def fault(carry_out: Callable[[], Any]) -> Any:
        action()
        return carry_out()

    return fault


class FaultyClient:
    """An `ndb.Client` as the store sees it, with faults for the next RPCs."""

    def __init__(self, client: Any) -> None:
        self.project = client.project
        self.database = client.database
        self.namespace = client.namespace
        self.stub = self
        self._stub = client.stub
        self.faults: list[Fault | None] = []
        self.calls: list[str] = []
        self.requests: list[Any] = []
        self.timeouts: list[float] = []
        self.late: list[Callable[[], Any]] = []

    def lookup(self, request: Any, *, timeout: float, metadata: Any) -> Any:
        return self._call("lookup", request, timeout, metadata)

    def commit(self, request: Any, *, timeout: float, metadata: Any) -> Any:
        return self._call("commit", request, timeout, metadata)

    def late_fault(self) -> Fault:
        """Return a fault: the RPC times out, and `deliver` carries it out."""

        def fault(carry_out: Callable[[], Any]) -> Any:
            self.late.append(carry_out)
            raise RpcError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

        return fault

    def deliver(self) -> None:
        while self.late:
            self.late.pop(0)()

    def _call(self, name: str, request: Any, timeout: float, metadata: Any) -> Any:
        self.calls.append(name)
        self.requests.append(request)
        self.timeouts.append(timeout)
        fault = self.faults.pop(0) if self.faults else None

        def carry_out() -> Any:
            return getattr(self._stub, name)(request, timeout=10, metadata=metadata)

        return carry_out() if fault is None else fault(carry_out)
