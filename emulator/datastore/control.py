"""Faults planted from outside the process: a small HTTP service that speaks JSON.

    GET    /faults       the faults that are planted
    POST   /faults       plant one: {"fault": "abort", "count": 2, "kind": "Learner"}
    DELETE /faults       remove all
    DELETE /faults/ID    remove one

The other members of a POST are the arguments of the method of `Faults` that has the
fault's name. Errors are answered with {"error": "..."} and status 400, 404 or 405.

`answer` knows nothing of sockets; `ControlServer` gives it a port of its own.
"""

import json
import logging
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from emulator.datastore.faults import Fault, Faults

_NAMES = ("abort", "unavailable", "deadline_exceeded", "drop_reply", "delay", "hold")
_TYPES: dict[str, tuple[type, ...]] = {
    "count": (int, type(None)),
    "rpc": (str, type(None)),
    "kind": (str, type(None)),
    "skip": (int,),
    "applied": (bool,),
    "seconds": (int, float),
}
_MAX_BODY_BYTES = 64 * 1024

_log = logging.getLogger(__name__)


class _RefusedError(Exception):
    """The request cannot be carried out."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def answer(faults: Faults, method: str, path: str, body: bytes) -> tuple[HTTPStatus, Any]:
    """What a request is answered: a status, and a document for JSON."""
    try:
        return _answer(faults, method, path.partition("?")[0].rstrip("/"), body)
    except _RefusedError as refused:
        return refused.status, {"error": str(refused)}


def _answer(faults: Faults, method: str, path: str, body: bytes) -> tuple[HTTPStatus, Any]:
    if path == "/faults":
        if method == "POST":
            return HTTPStatus.CREATED, _described(_plant(faults, body))
        if method == "DELETE":
            faults.clear()
        elif method != "GET":
            raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "GET, POST or DELETE /faults")
        return HTTPStatus.OK, {"faults": [_described(fault) for fault in faults.planted]}
    number = path.removeprefix("/faults/")
    fault = next((each for each in faults.planted if str(each.id) == number), None)
    if fault is None:
        raise _RefusedError(HTTPStatus.NOT_FOUND, f"there is nothing at {path or '/'}")
    if method == "DELETE":
        fault.remove()
    elif method != "GET":
        raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"GET or DELETE {path}")
    return HTTPStatus.OK, _described(fault)


def _plant(faults: Faults, body: bytes) -> Fault:
    try:
        arguments = json.loads(body)
    except ValueError as error:
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


class _Handler(BaseHTTPRequestHandler):
    server: "ControlServer"
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > _MAX_BODY_BYTES:
            self.close_connection = True
            self._reply(HTTPStatus.BAD_REQUEST, {"error": "the body has no length, or is too long"})
            return
        body = self.rfile.read(int(length))
        self._reply(*answer(self.server.faults, self.command, self.path, body))

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _serve  # noqa: N815 - http.server's names

    def _reply(self, status: HTTPStatus, document: Any) -> None:
        content = json.dumps(document).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as inherited
        _log.debug(format, *arguments)


class ControlServer(ThreadingHTTPServer):
    """Answers on a port of its own, in threads of its own, until it is stopped.

    Raises:
        OSError: the address cannot be bound.
    """

    daemon_threads = True
    # What still listens on the port is not to be replaced by us in silence.
    allow_reuse_port = False

    def __init__(self, faults: Faults, host: str, port: int) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)
        self.faults = faults
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server_port}"
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.1}, name="datastore-control"
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening. A second call does nothing."""
        self.shutdown()
        self._thread.join()
        self.server_close()
