"""Cloud Tasks v2beta3 and v2beta2 in terms of v2: requests and replies with other names.

A field of the same name is the same field. The tables have those with another name, or in another
message; "" is the message around. What v2 does not have is ignored if it only describes (counts,
times to live), and otherwise UNIMPLEMENTED: pull queues and their tasks.
"""

import functools
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from userlock_emulator.port.rpcs import Rpcs, Run
from userlock_emulator.tasks.protos import Message
from userlock_emulator.tasks.validation import unimplemented

# By message and field; the field may be in another message, by its path.
_Names = Mapping[tuple[str, str], str]

_RPCS = (
    *("ListQueues", "GetQueue", "CreateQueue", "UpdateQueue", "DeleteQueue"),
    *("PurgeQueue", "PauseQueue", "ResumeQueue"),
    *("ListTasks", "GetTask", "CreateTask", "DeleteTask", "RunTask"),
)
# They describe a queue, are not for the client to set, or choose what is returned.
_IGNORED = frozenset({"type_", "stats", "task_ttl", "tombstone_ttl", "read_mask"})
_PULLED = frozenset({"pull_message", "pull_target"})


class Beta(NamedTuple):
    """A version: its name, and where a field of it is in v2 and the other way round."""

    name: str
    to_v2: _Names
    from_v2: _Names

    @property
    def service(self) -> str:
        """Return the full name of the gRPC service."""
        return f"google.cloud.tasks.{self.name}.CloudTasks"


BETAS = (
    Beta(
        "v2beta3",
        {("Queue", "app_engine_http_queue"): ""},
        {
            ("Queue", "app_engine_routing_override"): (
                "app_engine_http_queue.app_engine_routing_override"
            )
        },
    ),
    Beta(
        "v2beta2",
        {
            ("Queue", "app_engine_http_target"): "",
            ("RateLimits", "max_tasks_dispatched_per_second"): "max_dispatches_per_second",
            ("RateLimits", "max_concurrent_tasks"): "max_concurrent_dispatches",
            ("AppEngineHttpRequest", "relative_url"): "relative_uri",
            ("AppEngineHttpRequest", "payload"): "body",
            ("Task", "status"): "",
            ("TaskStatus", "attempt_dispatch_count"): "dispatch_count",
            ("TaskStatus", "attempt_response_count"): "response_count",
            ("TaskStatus", "first_attempt_status"): "first_attempt",
            ("TaskStatus", "last_attempt_status"): "last_attempt",
        },
        {
            ("Queue", "app_engine_routing_override"): (
                "app_engine_http_target.app_engine_routing_override"
            ),
            ("RateLimits", "max_dispatches_per_second"): "max_tasks_dispatched_per_second",
            ("RateLimits", "max_concurrent_dispatches"): "max_concurrent_tasks",
            ("AppEngineHttpRequest", "relative_uri"): "relative_url",
            ("AppEngineHttpRequest", "body"): "payload",
            ("Task", "dispatch_count"): "status.attempt_dispatch_count",
            ("Task", "response_count"): "status.attempt_response_count",
            ("Task", "first_attempt"): "status.first_attempt_status",
            ("Task", "last_attempt"): "status.last_attempt_status",
        },
    ),
)


def rpcs(beta: Beta, v2: Rpcs) -> Rpcs:
    """Return the RPCs of a version, carried out by those of v2; none without its client package."""
    try:
        types = importlib.import_module(f"google.cloud.tasks_{beta.name}.types")
    except ModuleNotFoundError:
        return {}
    return {
        name: (_run(beta, types, *v2[name]), getattr(types, f"{name}Request").meta.pb)
        for name in _RPCS
    }


def _run(beta: Beta, types: Any, run: Run, request_class: Any) -> Run:
    def call(request: Message) -> Message:
        asked = request_class()
        _copy(request, asked, beta.to_v2)
        response = run(asked)
        wrapper = getattr(types, response.DESCRIPTOR.name, None)
        if wrapper is None:  # Empty
            return response
        answer = wrapper.meta.pb()
        _copy(response, answer, beta.from_v2)
        return answer

    return call


def _copy(source: Message, target: Message, names: _Names) -> None:
    """Copy what is set in a message to a message of the other version."""
    kind = source.DESCRIPTOR.name
    if kind == "FieldMask":
        target.paths.extend(_path(path, names) for path in source.paths)
        return
    for field, value in source.ListFields():
        name = names.get((kind, field.name), field.name)
        inner = functools.reduce(getattr, name.split(".")[:-1], target)
        last = name.rpartition(".")[2]
        if not name:
            _copy(value, target, names)
        elif kind == "RetryConfig" and field.name == "unlimited_attempts":
            target.max_attempts = -1 if value else target.max_attempts
        elif last not in inner.DESCRIPTOR.fields_by_name:
            if field.name in _PULLED:
                raise unimplemented("pull queues")
            # A field of v2 alone is left out of the reply.
        elif field.message_type is None:
            if field.is_repeated:
                getattr(inner, last).extend(value)
            else:
                setattr(inner, last, value)
        elif field.message_type.GetOptions().map_entry:
            getattr(inner, last).update(value)
        elif field.is_repeated:
            for each in value:
                _copy(each, getattr(inner, last).add(), names)
        else:
            getattr(inner, last).SetInParent()
            _copy(value, getattr(inner, last), names)


def _path(path: str, names: _Names) -> str:
    """Return a path of an update mask in v2."""
    words = {field: there for (_, field), there in names.items()}
    words |= dict.fromkeys(_IGNORED, "")
    words["unlimited_attempts"] = "max_attempts"
    return ".".join(filter(None, (words.get(word, word) for word in path.split("."))))
