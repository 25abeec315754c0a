"""The HTTP side of the service: `POST /v1/projects/PROJECT:RPC`, without sockets.

Request and reply bodies are protobuf (`Content-Type: application/x-protobuf`) or otherwise JSON in
the proto3 mapping. An error is a google.rpc.Status with its HTTP status; in JSON {"error": {"code":
…, "message": …, "status": …}}.
"""

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status

from emulator.datastore.errors import Code, DatastoreError, invalid
from emulator.datastore.protos import Message
from emulator.datastore.rpcs import Rpcs

PREFIX = "/v1/projects/"
_PROTOBUF = "application/x-protobuf"
_JSON = "application/json"
# As in google.rpc.Code.
_HTTP_STATUS = {
    Code.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    Code.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    Code.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    Code.ABORTED: HTTPStatus.CONFLICT,
    Code.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    Code.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}


class Reply(NamedTuple):
    """The reply to a request. A body in pieces is sent piece by piece."""

    status: HTTPStatus
    content_type: str
    body: bytes | Iterator[bytes]


class HttpRpcs:
    """The handler of HTTP requests for RPCs."""

    def __init__(self, rpcs: Rpcs) -> None:
        # "RunQuery" is "runQuery" in a URL.
        self._rpcs = {name[0].lower() + name[1:]: rpc for name, rpc in rpcs.items()}

    def answer(self, method: str, path: str, content_type: str, body: bytes) -> Reply:
        """Return the reply to a request whose path begins with `PREFIX`."""
        in_json = content_type.partition(";")[0].strip().lower() != _PROTOBUF
        try:
            response = self._run(method, path, body, in_json)
        except DatastoreError as error:
            return _error(error, in_json)
        if in_json:
            return Reply(HTTPStatus.OK, _JSON, json_format.MessageToJson(response).encode())
        return Reply(HTTPStatus.OK, _PROTOBUF, response.SerializeToString())

    def _run(self, method: str, path: str, body: bytes, in_json: bool) -> Message:
        # Domain-scoped project ids contain a colon, too.
        project, _, name = path.partition("?")[0].removeprefix(PREFIX).rpartition(":")
        if method != "POST" or name not in self._rpcs:
            names = ", ".join(self._rpcs)
            raise DatastoreError(
                Code.NOT_FOUND,
                f"there is no {method} {path}; POST {PREFIX}PROJECT:RPC has: {names}",
            )
        run, request_class = self._rpcs[name]
        try:
            request = (
                json_format.Parse(body, request_class())
                if in_json
                else request_class.FromString(body)
            )
        except (json_format.ParseError, DecodeError, ValueError, RecursionError) as error:
            form = "JSON" if in_json else "protobuf"
            raise invalid(f"The body is not a {name} request in {form}: {error}") from None
        request.project_id = unquote(project)
        return run(request)


def _error(error: DatastoreError, in_json: bool) -> Reply:
    status = _HTTP_STATUS[error.code]
    if in_json:
        described = {"code": status, "message": error.message, "status": error.code.name}
        return Reply(status, _JSON, json.dumps({"error": described}).encode())
    message = Status(code=error.code, message=error.message)
    return Reply(status, _PROTOBUF, message.SerializeToString())
