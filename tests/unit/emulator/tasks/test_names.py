"""Resource names."""

from __future__ import annotations

import pytest

from userlock_emulator.port.status import Code, RpcError
from userlock_emulator.tasks import names

LOCATION = "projects/p-1.com:x/locations/us-central1"
QUEUE = f"{LOCATION}/queues/Q-1"


def test_good_names() -> None:
    assert names.check_location(LOCATION) == LOCATION
    assert names.check_queue(f"{LOCATION}/queues/{'q' * 100}")
    assert names.split_task(f"{QUEUE}/tasks/{'t' * 499}_") == (QUEUE, "t" * 499 + "_")
    assert names.location_of(QUEUE) == LOCATION
    assert names.project_of(QUEUE) == "p-1.com:x"
    assert names.split_task(names.task_name(QUEUE, names.new_task_id()))[0] == QUEUE


@pytest.mark.parametrize(
    ("check", "wrong", "text"),
    [
        (
            names.check_queue,
            [
                "", "q", "projects/p/queues/q", f"{LOCATION}/queues/", f"{LOCATION}/queues/a_b",
                f"{LOCATION}/queues/{'q' * 101}", f"{QUEUE}/", f"{QUEUE}\n", f"/{QUEUE}",
                "projects/p/locations/l/queues/ü", "projects//locations/l/queues/q",
                f"{QUEUE}/tasks/t",
            ],
            "Queue name must be formatted",
        ),
        (
            names.split_task,
            [f"{QUEUE}/tasks/{each}" for each in ("", "a b", "t" * 501, "ü", "a.b", "t\n")],
            "can contain only letters",
        ),
        (
            names.split_task,
            ["", QUEUE, f"{QUEUE}/tasks/a/b", "tasks/t", "x/tasks/t"],
            "Task name must be formatted",
        ),
        (names.check_location, ["", "projects/p", f"{LOCATION}/", f"{LOCATION}\n"], "Invalid"),
    ],
)  # fmt: skip
def test_bad_names(check: object, wrong: list[str], text: str) -> None:
    assert callable(check)
    for name in wrong:
        with pytest.raises(RpcError, match=text) as raised:
            check(name)
        assert raised.value.code is Code.INVALID_ARGUMENT
        assert len(raised.value.message) < 1000
