"""Cloud Tasks (extra `tasks`).

    cloudtasks://PROJECT/LOCATION/QUEUE?target=https://HOST/PATH&service_account=EMAIL
    cloudtasks://PROJECT/LOCATION/QUEUE?service=NAME

The first form calls a URL, by default its path `/userlock/jobs`, with an OIDC token of that service
account for `audience=…`, by default the target. The second one calls the app on App Engine.

A task's body is the key, and its id the message's name. One RPC for each task, all at once: the one
for batches begins an operation whose outcome would have to be asked for.

Sources: https://cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2
and https://cloud.google.com/tasks/docs/creating-http-target-tasks
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

try:
    import grpc
    from google.api_core.gapic_v1 import routing_header
    from google.cloud import tasks_v2
    from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport
except ImportError as error:
    raise ImportError(
        "cloudtasks:// needs the client of Cloud Tasks: pip install 'userlock[tasks]'"
    ) from error

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.outbox.authentication import GOOGLE_CERTS_URL, AppEngineHeader, Caller, OidcToken
from userlock.outbox.engines import Wake
from userlock.outbox.engines.bounded import BoundedEngine, Outcomes

EMULATOR_VARIABLE = "CLOUD_TASKS_EMULATOR_HOST"
#: The path of an emulator's certificates, as of Google's.
_CERTS_PATH = urlsplit(GOOGLE_CERTS_URL).path
#: The path where the web integrations take messages.
JOBS_PATH = "/userlock/jobs"
#: Of an RPC, in seconds: the service refuses later ones. The caller waits for its own time. A task
#: that is created after that, when a process has to connect first, runs sooner than by the relay.
_LEAST_DEADLINE, _MOST_DEADLINE = 5.0, 30.0
#: The clocks of two machines differ. A task that comes early finds nothing to do.
_MARGIN_SECONDS = 0.25
#: The service takes 30 days by its own clock. In seconds.
_MOST_DELAY = 30 * 86_400 - 3600
#: A channel of a forked child does not share its parent's connections.
_CHANNEL_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]

_PLACE = re.compile(
    r"(?P<project>[A-Za-z0-9.:-]{1,100})/(?P<location>[a-z0-9-]{1,63})/(?P<queue>[A-Za-z0-9-]{1,100})/?"
)
_SERVICE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_EMAIL = re.compile(r"[^\s@]{1,64}@[A-Za-z0-9.-]{1,255}")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Address(NamedTuple):
    """The parts of a URL. Without a target the tasks are App Engine's."""

    project: str
    location: str
    queue: str
    target: str = ""
    service_account: str = ""
    audience: str = ""
    service: str = ""

    @property
    def parent(self) -> str:
        return f"projects/{self.project}/locations/{self.location}/queues/{self.queue}"


class CloudTasksEngine(BoundedEngine):
    """A queue of Cloud Tasks."""

    def __init__(
        self,
        address: Address,
        *,
        make_transport: Callable[[], Any] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._address = address
        self._make_transport = make_transport or connect_to_service
        # As gapic clients do: the service routes requests by it.
        routed: Any = routing_header.to_grpc_metadata
        self._metadata = (routed((("parent", address.parent),)),)
        super().__init__(f"Cloud Tasks, queue {address.queue}", clock)

    @property
    def caller(self) -> Caller:
        """Return the caller of the web endpoints that this queue is."""
        address = self._address
        if not address.target:
            return AppEngineHeader()
        emulator = os.environ.get(EMULATOR_VARIABLE)
        return OidcToken(
            audience=address.audience,
            service_account=address.service_account,
            certs_url=f"http://{emulator}{_CERTS_PATH}" if emulator else GOOGLE_CERTS_URL,
        )

    @property
    def called_path(self) -> str:
        """Return the path that the queue calls."""
        return urlsplit(self._address.target).path or JOBS_PATH

    def open_client(self) -> Any:
        return self._make_transport()

    def send(self, messages: Sequence[Wake], outcomes: Outcomes, ends: float) -> None:
        create = self.client.create_task
        deadline = min(max(ends - self.clock.now(), _LEAST_DEADLINE), _MOST_DEADLINE)
        calls = [
            create.future(self.request(each), timeout=deadline, metadata=self._metadata)
            for each in messages
        ]
        for index, call in enumerate(calls):
            error = call.exception()
            code = None if error is None else error.code()
            if code in (None, grpc.StatusCode.ALREADY_EXISTS):
                outcomes[index] = None
            else:
                outcomes[index] = f"{code.name}: {error.details()}"

    def request(self, message: Wake) -> Any:
        address = self._address
        task: Any = tasks_v2.Task(name=f"{address.parent}/tasks/{message.name}")
        if message.delay > 0:
            delay = min(message.delay + _MARGIN_SECONDS, _MOST_DELAY)
            moment = self.clock.wall() + delay
            task.schedule_time = datetime.datetime.fromtimestamp(moment, datetime.UTC)
        body, headers = message.key.encode(), {"Content-Type": "text/plain"}
        if address.target:
            task.http_request = tasks_v2.HttpRequest(
                url=address.target,
                http_method=tasks_v2.HttpMethod.POST,
                headers=headers,
                body=body,
                oidc_token=tasks_v2.OidcToken(
                    service_account_email=address.service_account, audience=address.audience
                ),
            )
        else:
            task.app_engine_http_request = tasks_v2.AppEngineHttpRequest(
                relative_uri=JOBS_PATH,
                http_method=tasks_v2.HttpMethod.POST,
                headers=headers,
                body=body,
                app_engine_routing=tasks_v2.AppEngineRouting(service=address.service),
            )
        return tasks_v2.CreateTaskRequest(parent=address.parent, task=task)


def connect_to_service() -> Any:
    emulator = os.environ.get(EMULATOR_VARIABLE)
    if emulator:
        return CloudTasksGrpcTransport(
            channel=grpc.insecure_channel(emulator, options=_CHANNEL_OPTIONS)
        )

    def channel(host: str, **given: Any) -> Any:
        given["options"] = [*given.get("options", ()), *_CHANNEL_OPTIONS]
        return CloudTasksGrpcTransport.create_channel(host, **given)

    return CloudTasksGrpcTransport(channel=channel)


def open_url(url: str) -> CloudTasksEngine:
    return CloudTasksEngine(parse(url))


def parse(url: str) -> Address:
    """Return the parts of a URL, or raise ValueError."""
    scheme, separator, rest = url.partition("://")
    place, _, query = rest.partition("?")
    parts = _PLACE.fullmatch(place)
    if scheme.lower() != "cloudtasks" or not separator or parts is None or "#" in url:
        raise ValueError(
            f"{url:.200}: a queue of Cloud Tasks is cloudtasks://PROJECT/LOCATION/QUEUE?OPTION=VALUE"
        )
    named = parse_qsl(query, keep_blank_values=True)
    options = dict(named)
    known = {"target", "service_account", "audience", "service"}
    if len(options) < len(named) or not options.keys() <= known or not all(options.values()):
        raise ValueError(
            f"{url:.200}: the options are {', '.join(sorted(known))}, each once and with a value; "
            f"an & in a value is %26"
        )
    address = Address(**parts.groupdict(), **options)
    problem = _problem_of(address)
    if problem:
        raise ValueError(f"{url:.200}: {problem}")
    if not address.target:
        return address
    target = urlsplit(address.target)
    if target.path in ("", "/"):
        address = address._replace(target=target._replace(path=JOBS_PATH).geturl())
    return address._replace(audience=address.audience or address.target)


def _problem_of(address: Address) -> str:
    if not address.target:
        if address.service_account or address.audience:
            return "service_account= and audience= are for HTTP targets: give target= as well"
        if address.service and not _SERVICE.fullmatch(address.service):
            return "service= is the name of an App Engine service"
        return ""
    if address.service:
        return "service= is for App Engine, without target="
    try:
        target = urlsplit(address.target)
        host, _ = target.hostname, target.port
    except ValueError:
        return "target= is no URL"
    # The token would be readable on its way.
    safe = target.scheme == "https" or (
        target.scheme == "http" and (host in _LOOPBACK or os.environ.get(EMULATOR_VARIABLE))
    )
    if not (safe and host and address.target.isascii() and address.target.isprintable()):
        return "target= must be an https:// URL (http:// for an emulator)"
    if "@" in target.netloc or target.fragment or " " in address.target:
        return "target= must have no user, fragment or space"
    if not _EMAIL.fullmatch(address.service_account):
        return "target= needs service_account=EMAIL: its OIDC token shows that the queue calls"
    return ""
