"""The HTTP request that a task describes, with the headers that the service adds.

Sources: the pages "Create HTTP target tasks" and "Create App Engine task handlers", the messages
HttpRequest and AppEngineHttpRequest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from userlock_emulator.tasks.attempts import Attempt
from userlock_emulator.tasks.names import last_part
from userlock_emulator.tasks.protos import METHODS, Message
from userlock_emulator.tasks.tokens import Signer
from userlock_emulator.tasks.validation import encoded

# Headers that describe this connection, or that the service sets itself.
_DROPPED = frozenset(
    (
        *("host", "content-length", "connection", "keep-alive", "transfer-encoding", "te"),
        *("trailer", "upgrade", "expect", "proxy-authorization", "proxy-connection"),
    )
)
_RESERVED = ("x-google-", "x-appengine-", "x-cloudtasks-")
_BODY_METHODS = ("POST", "PUT", "PATCH")


class TargetError(Exception):
    """A task cannot be sent to its target. The text says why."""


@dataclass(frozen=True)
class Outgoing:
    """A request to a target.

    Attributes:
        host, port: the address of the target, as in the URL.
        tls: the scheme is https.
        head: the request line and the headers, up to the empty line.
    """

    host: str
    port: int
    tls: bool
    method: str
    head: bytes
    body: bytes


class Targets:
    """Makes requests of tasks.

    Args:
        signer: signs the tokens of tasks that ask for one.
        app_engine: the address ("HOST:PORT") of each App Engine service. The one of "" serves the
            services that are not listed.
    """

    def __init__(self, signer: Signer, app_engine: Mapping[str, str]) -> None:
        self._signer = signer
        self._app_engine = app_engine

    def outgoing(self, attempt: Attempt) -> Outgoing:
        """Return the request of an attempt.

        Raises:
            TargetError: the task has no address that can be used.
        """
        task = attempt.task
        if task.WhichOneof("message_type") == "app_engine_http_request":
            request = task.app_engine_http_request
            routing = attempt.routing or request.app_engine_routing
            url = f"http://{self._address(routing.service)}{request.relative_uri}"
            return _outgoing(url, request, _headers(attempt, "X-AppEngine"))
        request = task.http_request
        headers = _headers(attempt, "X-CloudTasks")
        if request.HasField("oidc_token"):
            asked = request.oidc_token
            token = self._signer.token(asked.service_account_email, asked.audience or request.url)
            headers["Authorization"] = f"Bearer {token}"
        return _outgoing(request.url, request, headers)

    def _address(self, service: str) -> str:
        address = self._app_engine.get(service) or self._app_engine.get("")
        if address is None:
            raise TargetError(
                f"no address is known for the App Engine service {service or 'default'!r}:"
                " name it with --app-engine"
            )
        return address


def _headers(attempt: Attempt, prefix: str) -> dict[str, str]:
    seconds, rest = divmod(attempt.scheduled, 1_000_000)
    headers = {
        f"{prefix}-QueueName": last_part(attempt.queue_name),
        f"{prefix}-TaskName": last_part(attempt.task.name),
        f"{prefix}-TaskRetryCount": str(attempt.number - 1),
        f"{prefix}-TaskExecutionCount": str(attempt.executions),
        f"{prefix}-TaskETA": f"{seconds}.{rest:06d}",
    }
    if attempt.number > 1 and attempt.previous is not None:
        headers[f"{prefix}-TaskPreviousResponse"] = str(attempt.previous)
        headers[f"{prefix}-TaskRetryReason"] = attempt.retry_reason
    return headers


def _outgoing(url: str, request: Message, added: dict[str, str]) -> Outgoing:
    try:
        parts = urlsplit(encoded(url))
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise TargetError(f"the URL cannot be used: {error}") from None
    if not parts.hostname:
        raise TargetError("the URL has no host")
    method = METHODS[request.http_method]
    body = bytes(request.body)
    names = {name.lower() for name in added}
    headers = {
        name: value
        for name, value in request.headers.items()
        if not (name.lower() in _DROPPED or name.lower().startswith(_RESERVED))
        and name.lower() not in names
    }
    headers |= added
    if body or method in _BODY_METHODS:
        headers["Content-Length"] = str(len(body))
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode()
    return Outgoing(parts.hostname, port, parts.scheme == "https", method, head, body)
