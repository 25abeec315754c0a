"""Resource names: their syntax, and the error for a wrong one.

Source: the fields `name` of Queue and Task in the reference of the v2 API.
"""

import re
import secrets

from userlock_emulator.port.status import Code, RpcError

LOCATION = r"projects/[A-Za-z0-9:.-]{1,200}/locations/[A-Za-z0-9-]{1,100}"
_LOCATION = re.compile(LOCATION)
_QUEUE = re.compile(rf"({LOCATION})/queues/([A-Za-z0-9-]{{1,100}})")
_TASK_ID = re.compile(r"[A-Za-z0-9_-]{1,500}")


def invalid(message: str) -> RpcError:
    """Return the error for a malformed request."""
    return RpcError(Code.INVALID_ARGUMENT, message)


def check_location(name: str) -> str:
    """Return the name of a location.

    Raises:
        RpcError: it is malformed.
    """
    if not _LOCATION.fullmatch(name):
        raise invalid("Invalid resource field value in the request.")
    return name


def check_queue(name: str) -> str:
    """Return the name of a queue.

    Raises:
        RpcError: it is malformed.
    """
    if not _QUEUE.fullmatch(name):
        raise invalid(
            'Queue name must be formatted: "projects/<PROJECT_ID>/locations/<LOCATION_ID>/queues/'
            '<QUEUE_ID>".'
        )
    return name


def location_of(queue: str) -> str:
    """Return the location of a queue."""
    return queue.rpartition("/queues/")[0]


def split_task(name: str) -> tuple[str, str]:
    """Return the queue and the id in the name of a task.

    Raises:
        RpcError: it is malformed.
    """
    queue, found, task_id = name.partition("/tasks/")
    if not found or not _QUEUE.fullmatch(queue) or "/" in task_id:
        raise invalid(
            'Task name must be formatted: "projects/<PROJECT_ID>/locations/<LOCATION_ID>/queues/'
            '<QUEUE_ID>/tasks/<TASK_ID>"'
        )
    if not _TASK_ID.fullmatch(task_id):
        raise invalid(
            f'Task ID "{task_id[:500]}" can contain only letters ([A-Za-z]), numbers ([0-9]),'
            " hyphens (-), or underscores (_). Task ID must between 1 and 500 characters."
        )
    return queue, task_id


def task_name(queue: str, task_id: str) -> str:
    """Return the full name of a task."""
    return f"{queue}/tasks/{task_id}"


def last_part(name: str) -> str:
    """Return the id at the end of a name."""
    return name.rpartition("/")[2]


def project_of(name: str) -> str:
    """Return the project in a name."""
    return name.split("/")[1]


def new_task_id() -> str:
    """Return a random id, as the service gives to tasks without a name."""
    return str(secrets.randbelow(9 * 10**18) + 10**18)
