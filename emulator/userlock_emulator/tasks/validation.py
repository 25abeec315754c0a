"""Documented limits of queues and tasks, and the values of unspecified fields.

Sources: the reference of the v2 API, and the page "Quotas and limits".
"""

import re
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from google.protobuf.message import Message as AnyMessage

from userlock_emulator.port.status import Code, RpcError
from userlock_emulator.tasks import protos
from userlock_emulator.tasks.names import invalid, project_of
from userlock_emulator.tasks.protos import METHODS, POST, Message, has_field, microseconds
from userlock_emulator.tasks.schedule import Retry, burst_of

DEFAULT_RATE = 500.0
DEFAULT_CONCURRENT = 1000
DEFAULT_ATTEMPTS = 100
DEFAULT_DOUBLINGS = 16
DEFAULT_MIN_BACKOFF = protos.MICROSECONDS // 10
DEFAULT_MAX_BACKOFF = 3600 * protos.MICROSECONDS
_MAX_RATE = 500
_MAX_CONCURRENT = 5000

# "Approximately +-10,000 years": beyond it, a Duration has no JSON form.
_LONGEST_DURATION = 315_576_000_000 * protos.MICROSECONDS

MAX_HTTP_TASK_BYTES = 1024 * 1024
MAX_APP_ENGINE_TASK_BYTES = 100 * 1024
_MAX_URL = 2083
_MAX_HEADER_BYTES = 80 * 1024
_MAX_AHEAD = 30 * 24 * 3600 * protos.MICROSECONDS
_DEFAULT_DEADLINE = 600 * protos.MICROSECONDS
_LEAST_DEADLINE = 15 * protos.MICROSECONDS
_MOST_HTTP_DEADLINE = 1800 * protos.MICROSECONDS
_MOST_APP_ENGINE_DEADLINE = (24 * 3600 + 15) * protos.MICROSECONDS

_HTTP_USER_AGENT = "Google-Cloud-Tasks"
_APP_ENGINE_USER_AGENT = "AppEngine-Google; (+http://code.google.com/appengine)"
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_BODY_METHODS = {
    "http_request": ("POST", "PUT", "PATCH"),
    "app_engine_http_request": ("POST", "PUT"),
}


def unimplemented(feature: str) -> RpcError:
    """Return the error for a feature that the emulator does not have."""
    return RpcError(Code.UNIMPLEMENTED, f"The emulator does not support {feature}.")


def complete_queue(queue: Message) -> None:
    """Check the settings of a queue, and fill in those that are unspecified.

    Raises:
        RpcError: a setting is out of range.
    """
    if has_field(protos.Queue, "http_target") and queue.HasField("http_target"):
        raise unimplemented("Queue.http_target")
    limits = queue.rate_limits
    if not limits.max_dispatches_per_second >= 0:  # also what is not a number
        raise invalid("RateLimits.maxDispatchesPerSecond cannot be negative.")
    if limits.max_dispatches_per_second > _MAX_RATE:
        raise invalid(
            f"RateLimits.maxDispatchesPerSecond must be less than or equal to {_MAX_RATE}."
        )
    if limits.max_concurrent_dispatches < 0:
        raise invalid("RateLimits.maxConcurrentDispatches cannot be negative.")
    if limits.max_concurrent_dispatches > _MAX_CONCURRENT:
        raise invalid(
            f"RateLimits.maxConcurrentDispatches must be less than or equal to {_MAX_CONCURRENT}."
        )
    limits.max_dispatches_per_second = limits.max_dispatches_per_second or DEFAULT_RATE
    limits.max_concurrent_dispatches = limits.max_concurrent_dispatches or DEFAULT_CONCURRENT
    limits.max_burst_size = burst_of(limits.max_dispatches_per_second)
    complete_retry(queue.retry_config)
    if queue.HasField("app_engine_routing_override"):
        set_host(queue.app_engine_routing_override, queue.name)


def complete_retry(config: Message) -> None:
    """Check retry settings, and fill in those that are unspecified.

    Raises:
        RpcError: a setting is out of range.
    """
    if config.max_attempts < -1:
        raise invalid("RetryConfig.maxAttempts must be greater or equal to -1.")
    if config.max_doublings < 0:
        raise invalid("RetryConfig.maxDoublings cannot be negative.")
    for field in ("max_retry_duration", "min_backoff", "max_backoff"):
        if not config.HasField(field):
            continue
        time = microseconds(getattr(config, field))
        if time < 0:
            raise invalid(f"RetryConfig.{_camel(field)} cannot be negative.")
        if time > _LONGEST_DURATION:
            raise invalid(f"RetryConfig.{_camel(field)} is longer than a Duration can be.")
        # In its one correct form: JSON has no other.
        getattr(config, field).CopyFrom(protos.duration(time))
    config.max_attempts = config.max_attempts or DEFAULT_ATTEMPTS
    config.max_doublings = config.max_doublings or DEFAULT_DOUBLINGS
    for field, default in (
        ("min_backoff", DEFAULT_MIN_BACKOFF),
        ("max_backoff", DEFAULT_MAX_BACKOFF),
    ):
        if not microseconds(getattr(config, field)):
            getattr(config, field).CopyFrom(protos.duration(default))
    if microseconds(config.min_backoff) > microseconds(config.max_backoff):
        raise invalid(
            "RetryConfig.minBackoff must be less than or equal to RetryConfig.maxBackoff."
        )


def retry_of(config: Message) -> Retry:
    """Return completed retry settings."""
    return Retry(
        max_attempts=config.max_attempts,
        # Documented as truncated to seconds, as the back-offs are, whose default is 0.1 s.
        max_duration=microseconds(config.max_retry_duration),
        min_backoff=microseconds(config.min_backoff),
        max_backoff=microseconds(config.max_backoff),
        max_doublings=config.max_doublings,
    )


def complete_task(task: Message, queue: str, now: int) -> None:
    """Check a task that is to be created, and fill in what is unspecified. Its name is another's.

    Raises:
        RpcError: a field is missing or out of range.
    """
    kind = task.WhichOneof("message_type")
    if kind is None:
        raise invalid("Task.message_type is required: HttpRequest or AppEngineHttpRequest.")
    most = MAX_HTTP_TASK_BYTES if kind == "http_request" else MAX_APP_ENGINE_TASK_BYTES
    if task.ByteSize() > most:
        raise invalid(f"Task size too large: {task.ByteSize()} bytes, at most {most}.")
    for field in (
        "create_time", "dispatch_count", "response_count", "first_attempt", "last_attempt", "view",
    ):  # fmt: skip
        task.ClearField(field)  # output only
    request = getattr(task, kind)
    request.http_method = request.http_method or POST
    method = METHODS.get(request.http_method)
    if method is None:
        raise invalid(f"HttpRequest.http_method cannot be {request.http_method}.")
    if request.body and method not in _BODY_METHODS[kind]:
        raise invalid(f"HTTP body is not allowed for HTTP method {method}.")
    _check_headers(request.headers)
    if kind == "http_request":
        _complete_http(request)
    else:
        _complete_app_engine(request, queue)
    _complete_times(task, kind, now)
    if has_field(protos.Task, "retry_config") and task.HasField("retry_config"):
        complete_retry(task.retry_config)


def _check_headers(headers: Message) -> None:
    size = 0
    for name, value in headers.items():
        # A line break would begin another header, or another request.
        if not _HEADER_NAME.fullmatch(name):
            raise invalid(f"The header name {name[:100]!r} is invalid.")
        if any((ord(letter) < 32 and letter != "\t") or ord(letter) == 127 for letter in value):
            raise invalid(f"The value of the header {name[:100]} has control characters.")
        size += len(name) + len(value.encode())
    if size >= _MAX_HEADER_BYTES:
        raise invalid(f"The size of the headers must be less than 80KB, not {size} bytes.")


def _set_header(headers: Message, name: str, value: str) -> None:
    for given in [each for each in headers if each.lower() == name.lower()]:
        del headers[given]
    headers[name] = value


def _header(headers: Message, name: str) -> str | None:
    return next((value for key, value in headers.items() if key.lower() == name.lower()), None)


def _complete_http(request: Message) -> None:
    if not request.url:
        raise invalid("HttpRequest.url is required.")
    if not request.url.lower().startswith(("http://", "https://")):
        raise invalid("HttpTarget.url must start with 'http://' or 'https://'.")
    if len(encoded(request.url)) > _MAX_URL:
        raise invalid(f"HttpRequest.url must be less than or equal to {_MAX_URL} characters.")
    try:
        host = urlsplit(request.url).hostname
    except ValueError:
        host = None
    if not host:
        raise invalid("HttpRequest.url is not a valid URL.")
    if request.HasField("oauth_token"):
        raise unimplemented("HttpRequest.oauth_token, which only Google's own APIs accept")
    if request.HasField("oidc_token") and "@" not in request.oidc_token.service_account_email:
        raise invalid("OidcToken.service_account_email is required: an e-mail address.")
    _set_header(request.headers, "User-Agent", _HTTP_USER_AGENT)


def _complete_app_engine(request: Message, queue: str) -> None:
    uri = request.relative_uri
    if uri and not uri.startswith("/"):
        raise invalid("AppEngineHttpRequest.relative_uri must begin with '/'.")
    if len(uri) > _MAX_URL or any(ord(letter) <= 32 or ord(letter) == 127 for letter in uri):
        raise invalid(
            "AppEngineHttpRequest.relative_uri must have no spaces and at most"
            f" {_MAX_URL} characters."
        )
    request.relative_uri = uri or "/"
    set_host(request.app_engine_routing, queue)
    agent = _header(request.headers, "User-Agent")
    _set_header(
        request.headers,
        "User-Agent",
        f"{agent} {_APP_ENGINE_USER_AGENT}" if agent else _APP_ENGINE_USER_AGENT,
    )
    if request.body:
        if _header(request.headers, "Content-Type") is None:
            request.headers["Content-Type"] = "application/octet-stream"
        _set_header(request.headers, "Content-Length", str(len(request.body)))


def set_host(routing: Message, queue: str) -> None:
    """Set the output-only host of a routing."""
    parts = [each for each in (routing.instance, routing.version, routing.service) if each]
    routing.host = ".".join([*parts, f"{project_of(queue)}.appspot.com"])


def _complete_times(task: Message, kind: str, now: int) -> None:
    scheduled = microseconds(task.schedule_time)
    if scheduled > now + _MAX_AHEAD:
        raise invalid(
            f"The Task.scheduleTime, {_readable(scheduled)}, is too far in the future. Schedule"
            " time must be no more than 720h in the future."
        )
    task.schedule_time.CopyFrom(protos.timestamp(max(scheduled, now)))
    task.create_time.CopyFrom(protos.timestamp(now - now % protos.MICROSECONDS))
    deadline = microseconds(task.dispatch_deadline)
    if not deadline:
        deadline = _DEFAULT_DEADLINE
    http = kind == "http_request"
    most = _MOST_HTTP_DEADLINE if http else _MOST_APP_ENGINE_DEADLINE
    if not _LEAST_DEADLINE <= deadline <= most:
        bounds = "[15s, 30m]" if http else "[15s, 24h15s]"
        raise invalid(f"Task.dispatchDeadline must be between {bounds}.")
    task.dispatch_deadline.CopyFrom(protos.duration(deadline - deadline % 1000))


def _readable(scheduled: int) -> str:
    try:
        return datetime.fromtimestamp(scheduled // protos.MICROSECONDS, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return f"{scheduled // protos.MICROSECONDS} s"


def encoded(url: str) -> str:
    """Return a URL with the characters encoded that may not be in a request line."""
    return quote(url, safe="!#$%&'()*+,/:;=?@[]~-._")


def _camel(field: str) -> str:
    first, *others = field.split("_")
    return first + "".join(map(str.capitalize, others))


def update_queue(queue: Message, changes: Message, paths: list[str]) -> None:
    """Apply the changes under a field mask; an empty mask stands for all fields.

    Raises:
        RpcError: the mask names an unknown field.
    """
    settings = [name for name in protos.Queue.DESCRIPTOR.fields_by_name if name not in _OUTPUT_ONLY]
    for path in paths or settings:
        if path.partition(".")[0] not in _OUTPUT_ONLY:
            _copy(queue, changes, path.split("."), path)


_OUTPUT_ONLY = ("name", "state", "purge_time")


def _copy(target: AnyMessage, source: AnyMessage, words: list[str], path: str) -> None:
    name, *below = words
    field = target.DESCRIPTOR.fields_by_name.get(name)
    if field is None or (below and field.message_type is None):
        raise invalid(f"Invalid field in UpdateQueueRequest.update_mask: {path[:200]}")
    if below:
        _copy(getattr(target, name), getattr(source, name), below, path)
    elif field.message_type is None:
        setattr(target, name, getattr(source, name))
    elif source.HasField(name):
        getattr(target, name).CopyFrom(getattr(source, name))
    else:
        target.ClearField(name)
