"""The emulator's HTTP requests beside its RPCs; JSON in and out.

    GET    /             "Ok" while the emulator serves
    POST   /reset        delete all data
    POST   /shutdown     stop the emulator
    GET    /export       all entities, a line of JSON each
    POST   /import       store the entities of such lines: {"entities": 3}
    GET    /faults       the active faults
    POST   /faults       add one: {"fault": "abort", "count": 2, "kind": "Learner"}
    DELETE /faults       remove all
    DELETE /faults/ID    remove one

The other members of a POST to /faults are the arguments of the method of `Faults` with the fault's
name. Error responses are {"error": "..."} with status 400, 404 or 405. This module does no I/O.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from userlock_emulator.datastore.errors import DatastoreError
from userlock_emulator.datastore.faults import Faults
from userlock_emulator.datastore.transfer import Transfer
from userlock_emulator.port.fault_requests import FaultRequests
from userlock_emulator.port.reply import RefusedError, Reply, in_json

_NAMES = ("abort", "unavailable", "deadline_exceeded", "drop_reply", "delay", "hold")
_TYPES: dict[str, tuple[type, ...]] = {
    "count": (int, type(None)),
    "rpc": (str, type(None)),
    "kind": (str, type(None)),
    "skip": (int,),
    "applied": (bool,),
    "seconds": (int, float),
}
_METHODS = {"/reset": "POST", "/shutdown": "POST", "/import": "POST", "/export": "GET"}


class Control:
    """Handler of these requests.

    Args:
        faults: the faults to list, add and remove.
        transfer: exports and imports entities.
        reset: deletes all data.
        shut_down: begins to stop the emulator, and returns before the end.
    """

    def __init__(
        self,
        faults: Faults,
        transfer: Transfer,
        reset: Callable[[], None],
        shut_down: Callable[[], None],
    ) -> None:
        self._faults = FaultRequests(faults, _NAMES, _TYPES)
        self._transfer = transfer
        self._reset = reset
        self._shut_down = shut_down

    def answer(self, method: str, path: str, body: bytes) -> Reply:
        """Return the reply to a request."""
        path = path.partition("?")[0].rstrip("/")
        if not path and method == "GET":
            return Reply(HTTPStatus.OK, "text/plain", b"Ok\n")
        if (method, path) == ("GET", "/export"):
            return Reply(HTTPStatus.OK, "application/jsonl", self._transfer.lines())
        try:
            status, document = self._answer(method, path, body)
        except RefusedError as refused:
            status, document = refused.status, {"error": str(refused)}
        return in_json(status, document)

    def _answer(self, method: str, path: str, body: bytes) -> tuple[HTTPStatus, Any]:
        if (method, path) == ("POST", "/reset"):
            self._reset()
            return HTTPStatus.OK, {}
        if (method, path) == ("POST", "/shutdown"):
            self._shut_down()
            return HTTPStatus.OK, {}
        if (method, path) == ("POST", "/import"):
            return HTTPStatus.OK, {"entities": self._load(body)}
        if path in _METHODS:
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"{_METHODS[path]} {path}")
        return self._faults.answer(method, path, body)

    def _load(self, lines: bytes) -> int:
        try:
            return self._transfer.load(lines)
        except DatastoreError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, error.message) from None
