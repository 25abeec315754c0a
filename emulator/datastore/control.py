"""The emulator's HTTP requests beside its RPCs; JSON in and out.

    GET    /             "Ok" while the emulator serves
    POST   /reset        delete all data
    GET    /export       all entities, a line of JSON each
    POST   /import       store the entities of such lines: {"entities": 3}
    GET    /faults       the active faults
    POST   /faults       add one: {"fault": "abort", "count": 2, "kind": "Learner"}
    DELETE /faults       remove all
    DELETE /faults/ID    remove one

The other members of a POST to /faults are the arguments of the method of `Faults` with the fault's
name. Error responses are {"error": "..."} with status 400, 404 or 405. This module does no I/O.
"""

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from emulator.datastore.errors import DatastoreError
from emulator.datastore.faults import Fault, Faults
from emulator.datastore.http_rpcs import Reply
from emulator.datastore.transfer import Transfer

_NAMES = ("abort", "unavailable", "deadline_exceeded", "drop_reply", "delay", "hold")
_TYPES: dict[str, tuple[type, ...]] = {
    "count": (int, type(None)),
    "rpc": (str, type(None)),
    "kind": (str, type(None)),
    "skip": (int,),
    "applied": (bool,),
    "seconds": (int, float),
}
_METHODS = {"/reset": "POST", "/import": "POST", "/export": "GET"}


class _RefusedError(Exception):
    """The request cannot be carried out."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Control:
    """Handler of these requests.

    Args:
        faults: the faults to list, add and remove.
        transfer: exports and imports entities.
        reset: deletes all data.
    """

    def __init__(self, faults: Faults, transfer: Transfer, reset: Callable[[], None]) -> None:
        self._faults = faults
        self._transfer = transfer
        self._reset = reset

    def answer(self, method: str, path: str, body: bytes) -> Reply:
        """Return the reply to a request."""
        path = path.partition("?")[0].rstrip("/")
        if not path and method == "GET":
            return Reply(HTTPStatus.OK, "text/plain", b"Ok\n")
        if (method, path) == ("GET", "/export"):
            return Reply(HTTPStatus.OK, "application/jsonl", self._transfer.lines())
        try:
            status, document = self._answer(method, path, body)
        except _RefusedError as refused:
            status, document = refused.status, {"error": str(refused)}
        return Reply(status, "application/json", json.dumps(document).encode() + b"\n")

    def _answer(self, method: str, path: str, body: bytes) -> tuple[HTTPStatus, Any]:
        if (method, path) == ("POST", "/reset"):
            self._reset()
            return HTTPStatus.OK, {}
        if (method, path) == ("POST", "/import"):
            return HTTPStatus.OK, {"entities": self._load(body)}
        if path in _METHODS:
            raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"{_METHODS[path]} {path}")
        if path == "/faults":
            if method == "POST":
                return HTTPStatus.CREATED, _described(_plant(self._faults, body))
            if method == "DELETE":
                self._faults.clear()
            elif method != "GET":
                raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "GET, POST or DELETE /faults")
            return HTTPStatus.OK, {"faults": list(map(_described, self._faults.planted))}
        number = path.removeprefix("/faults/")
        fault = next((each for each in self._faults.planted if str(each.id) == number), None)
        if fault is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, f"there is no {path or '/'}")
        if method == "DELETE":
            fault.remove()
        elif method != "GET":
            raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"GET or DELETE {path}")
        return HTTPStatus.OK, _described(fault)

    def _load(self, lines: bytes) -> int:
        try:
            return self._transfer.load(lines)
        except DatastoreError as error:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, error.message) from None


def _plant(faults: Faults, body: bytes) -> Fault:
    try:
        arguments = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _RefusedError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise _RefusedError(HTTPStatus.BAD_REQUEST, "the body must be a JSON object")
    name = arguments.pop("fault", None)
    if name not in _NAMES:
        known = ", ".join(_NAMES)
        raise _RefusedError(
            HTTPStatus.BAD_REQUEST, f"there is no fault {name!r}; there are: {known}"
        )
    for argument, value in arguments.items():
        if type(value) not in _TYPES.get(argument, (type(value),)):
            raise _RefusedError(HTTPStatus.BAD_REQUEST, f"{argument} cannot be {value!r}")
    try:
        fault: Fault = getattr(faults, name)(**arguments)
    except (TypeError, ValueError) as error:
        wrong = str(error).removeprefix("Rule.__init__() ").removeprefix(f"Faults.{name}() ")
        raise _RefusedError(HTTPStatus.BAD_REQUEST, f"{name}: {wrong}") from None
    return fault


def _described(fault: Fault) -> dict[str, Any]:
    rule = fault.rule
    return {
        "id": fault.id,
        "fault": rule.name,
        "rpc": rule.rpc,
        "kind": rule.kind,
        "count": rule.count,
        "skip": rule.skip,
        "applied": rule.applied,
        "seconds": rule.seconds,
        "hits": fault.hits,
    }
