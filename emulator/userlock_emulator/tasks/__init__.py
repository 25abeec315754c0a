"""A Cloud Tasks emulator: `google.cloud.tasks.v2` over gRPC and HTTP, on top of SQLite.

    from userlock_emulator import tasks

    with tasks.start() as cloud_tasks:
        channel = grpc.insecure_channel(cloud_tasks.host)
        client = CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))

It needs the package google-cloud-tasks: `pip install 'userlock-emulator[tasks]'`. Sources: the
reference of the v2 API, and Cloud Tasks' pages "Quotas and limits", "Create HTTP target tasks" and
"Create App Engine task handlers". Texts and headers that these pages do not state are as recorded
from the service by github.com/aertje/cloud-tasks-emulator (test/conformance/golden).

The layers, each importing only those below it:

    server        start and stop of the whole emulator, on a port of `userlock_emulator.port`
    control       requests beside the RPCs: reset, faults, the keys of the tokens
    rest          the RPCs over HTTP/JSON
    rpcs          the RPCs by name, with fault injection and a log
    batches       batch RPCs and their operations; tasks, queues: the other RPCs
    dispatch      sends the tasks that are due: one thread
    attempts      the life of a task: an attempt begins, ends, is followed by another one
    sending       HTTP to a target; targets: the request that a task describes, and its headers
    lanes         the rate and the concurrency of one queue
    faults        deliveries and RPCs that go wrong on demand
    storage       tables in SQLite
    validation    documented limits
    schedule      back-off, token buckets and throttling, as functions of time
    tokens        OpenID Connect tokens, signed here
    names, clock, protos
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from userlock_emulator.tasks.clock import ManualClock
    from userlock_emulator.tasks.server import CloudTasks, start

__all__ = ["CloudTasks", "ManualClock", "start"]

_HOMES = {
    "CloudTasks": "userlock_emulator.tasks.server",
    "ManualClock": "userlock_emulator.tasks.clock",
    "start": "userlock_emulator.tasks.server",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        try:
            return getattr(importlib.import_module(_HOMES[name]), name)
        except ImportError as error:
            raise ImportError(
                f"the Cloud Tasks emulator needs further packages ({error}):"
                " pip install 'userlock-emulator[tasks]', in a checkout './emulator[tasks]'"
            ) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
