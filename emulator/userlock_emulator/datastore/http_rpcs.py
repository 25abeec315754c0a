"""The HTTP side of the service: `POST /v1/projects/PROJECT:RPC`, without sockets.

Request and reply bodies are protobuf (`Content-Type: application/x-protobuf`) or otherwise JSON in
the proto3 mapping; none is the empty message. Of the URL's parameters, `databaseId` is the field,
and `$alt` or `alt` may ask for numbers of enums (`json;enum-encoding=int`); others are ignored. An
error is a google.rpc.Status with its HTTP status; in JSON {"error": {"code": …, "message": …,
"status": …}}.
"""

from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status

from userlock_emulator.datastore.errors import Code, DatastoreError, invalid
from userlock_emulator.port.reply import JSON, Reply, rpc_error_in_json
from userlock_emulator.port.rpcs import Message, Rpcs
from userlock_emulator.port.status import HTTP_STATUS, RpcError

PREFIX = "/v1/projects/"
_PROTOBUF = "application/x-protobuf"
_MAX_PARAMETERS = 100


class HttpRpcs:
    """The handler of HTTP requests for RPCs."""

    def __init__(self, rpcs: Rpcs) -> None:
        # "RunQuery" is "runQuery" in a URL.
        self._rpcs = {name[0].lower() + name[1:]: rpc for name, rpc in rpcs.items()}

    def answer(self, method: str, path: str, content_type: str, body: bytes) -> Reply:
        """Return the reply to a request whose path begins with `PREFIX`."""
        in_json = content_type.partition(";")[0].strip().lower() != _PROTOBUF
        try:
            path, _, query = path.partition("?")
            parameters = dict(parse_qsl(query, max_num_fields=_MAX_PARAMETERS))
            response = self._run(method, path, parameters, body, in_json)
        except ValueError as error:
            return _error(invalid(f"The query of the URL is malformed: {error}"), in_json)
        except RpcError as error:
            return _error(error, in_json)
        if in_json:
            alt = parameters.get("$alt", parameters.get("alt", ""))
            text = json_format.MessageToJson(
                response, use_integers_for_enums="enum-encoding=int" in alt
            )
            return Reply(HTTPStatus.OK, JSON, text.encode())
        return Reply(HTTPStatus.OK, _PROTOBUF, response.SerializeToString())

    def _run(
        self, method: str, path: str, parameters: dict[str, str], body: bytes, in_json: bool
    ) -> Message:
        # Domain-scoped project ids contain a colon, too.
        encoded, _, name = path.removeprefix(PREFIX).rpartition(":")
        if method != "POST" or name not in self._rpcs:
            names = ", ".join(self._rpcs)
            raise DatastoreError(
                Code.NOT_FOUND,
                f"there is no {method} {path}; POST {PREFIX}PROJECT:RPC has: {names}",
            )
        run, request_class = self._rpcs[name]
        try:
            request = (
                json_format.Parse(body.decode("utf-8-sig") or "{}", request_class())
                if in_json
                else request_class.FromString(body)
            )
        except (json_format.ParseError, DecodeError, ValueError, RecursionError) as error:
            form = "JSON" if in_json else "protobuf"
            raise invalid(f"The body is not a {name} request in {form}: {error}") from None
        project = unquote(encoded)
        if request.project_id not in ("", project):
            raise invalid(f"The URL is about {project!r}, and the body about another project.")
        request.project_id = project
        if "databaseId" in parameters and "database_id" in request_class.DESCRIPTOR.fields_by_name:
            request.database_id = parameters["databaseId"]
        return run(request)


def _error(error: RpcError, in_json: bool) -> Reply:
    if in_json:
        return rpc_error_in_json(error)
    message = Status(code=error.code, message=error.message)
    return Reply(HTTP_STATUS[error.code], _PROTOBUF, message.SerializeToString())
