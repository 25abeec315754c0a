"""The HTTP side of the service: paths and JSON in the proto3 mapping, without sockets.

Source: the HTTP rules of the v2 API, `google/cloud/tasks/v2/cloudtasks.proto`. Those of the betas
are the same.
"""

import json
import re
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from google.protobuf import json_format

from userlock_emulator.port.reply import JSON, Reply, rpc_error_in_json
from userlock_emulator.port.rpcs import Rpcs
from userlock_emulator.port.status import Code, RpcError
from userlock_emulator.tasks.names import invalid

_LOCATION = r"projects/[^/:]+(?::[^/:]+)?/locations/[^/:]+"
_QUEUE = rf"{_LOCATION}/queues/[^/:]+"
_TASK = rf"{_QUEUE}/tasks/[^/:]+"
# Parameters of all Google APIs, which are about the transport.
_SYSTEM = re.compile(r"\$.*|alt|key|fields|prettyPrint|quotaUser|access_token|oauth_token|callback")


# Raised for documents that are no request.
_WRONG = (
    *(json_format.ParseError, ValueError, TypeError, AttributeError),
    *(RecursionError, ArithmeticError),
)


class _Route(NamedTuple):
    """One RPC: the field that the path sets, and the field that the body sets ("*": all)."""

    method: str
    path: re.Pattern[str]
    rpc: str
    field: str
    body: str = ""


def _route(method: str, path: str, rpc: str, field: str, body: str = "") -> _Route:
    return _Route(method, re.compile(path), rpc, field, body)


_ROUTES = (
    _route("GET", rf"({_LOCATION})/queues", "ListQueues", "parent"),
    _route("POST", rf"({_LOCATION})/queues", "CreateQueue", "parent", "queue"),
    _route("GET", rf"({_QUEUE})", "GetQueue", "name"),
    _route("PATCH", rf"({_QUEUE})", "UpdateQueue", "queue.name", "queue"),
    _route("DELETE", rf"({_QUEUE})", "DeleteQueue", "name"),
    _route("POST", rf"({_QUEUE}):purge", "PurgeQueue", "name", "*"),
    _route("POST", rf"({_QUEUE}):pause", "PauseQueue", "name", "*"),
    _route("POST", rf"({_QUEUE}):resume", "ResumeQueue", "name", "*"),
    _route("GET", rf"({_QUEUE})/tasks", "ListTasks", "parent"),
    _route("POST", rf"({_QUEUE})/tasks", "CreateTask", "parent", "*"),
    _route("POST", rf"({_QUEUE})/tasks:batchCreate", "BatchCreateTasks", "parent", "*"),
    _route("POST", rf"({_QUEUE})/tasks:batchDelete", "BatchDeleteTasks", "parent", "*"),
    _route("GET", rf"({_TASK})", "GetTask", "name"),
    _route("DELETE", rf"({_TASK})", "DeleteTask", "name"),
    _route("POST", rf"({_TASK}):run", "RunTask", "name", "*"),
    _route("GET", rf"({_LOCATION}/operations/[^/:]+)", "GetOperation", "name"),
)


class Rest:
    """The handler of HTTP requests for the RPCs of one version.

    Args:
        version: its name in paths.
    """

    def __init__(self, version: str, rpcs: Rpcs) -> None:
        self.prefix = f"/{version}/"
        self._rpcs = rpcs

    def answer(self, method: str, path: str, body: bytes) -> Reply:
        """Return the reply to a request whose path begins with `prefix`."""
        path, _, query = path.partition("?")
        try:
            parameters = _parameters(query)
            response = self._run(method, unquote(path.removeprefix(self.prefix)), parameters, body)
        except RpcError as error:
            return rpc_error_in_json(error)
        numbers = any(
            name in ("$alt", "alt") and "enum-encoding=int" in value for name, value in parameters
        )
        text = json_format.MessageToJson(response, use_integers_for_enums=numbers)
        return Reply(HTTPStatus.OK, JSON, text.encode())

    def _run(self, method: str, path: str, parameters: list[tuple[str, str]], body: bytes) -> Any:
        for route in _ROUTES:
            match = route.path.fullmatch(path) if route.method == method else None
            if match is not None and route.rpc in self._rpcs:
                run, request_class = self._rpcs[route.rpc]
                document = _document(route, match[1], parameters, body)
                return run(_parsed(document, request_class(), route.rpc))
        raise RpcError(Code.NOT_FOUND, f"there is no {method} {self.prefix}{path[:500]}")


def _document(
    route: _Route, name: str, parameters: list[tuple[str, str]], body: bytes
) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in parameters:
        if _SYSTEM.fullmatch(key) is None:
            _set(document, _camel(key), _mask(value) if key.lower().endswith("mask") else value)
    if route.body and body.strip():
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise invalid(f"The body is not JSON: {error}") from None
        if not isinstance(parsed, dict):
            raise invalid("The body must be a JSON object.")
        if route.body == "*":
            document |= parsed
        else:
            document[route.body] = parsed
    _set(document, route.field, name)
    return document


def _parameters(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=100)
    except ValueError as error:
        raise invalid(f"The query of the URL is malformed: {error}") from None


def _camel(key: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), key)


def _mask(value: str) -> str:
    """Return a field mask in the form of JSON; both forms are accepted in a URL."""
    return _camel(value)


def _set(document: dict[str, Any], path: str, value: str) -> None:
    *above, last = path.split(".")
    for word in above:
        below = document.setdefault(word, {})
        if not isinstance(below, dict):
            raise invalid(f"{word} must be an object.")
        document = below
    document[last] = value


def _parsed(document: dict[str, Any], request: Any, rpc: str) -> Any:
    try:
        return json_format.ParseDict(document, request)
    except _WRONG as error:
        raise invalid(f"Invalid JSON payload received for {rpc}: {error}") from None
