"""The RPCs on queues."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.unit.emulator.subject import refused
from tests.unit.emulator.tasks.subject import HOUR, LOCATION, QUEUE, SECOND, Subject
from userlock_emulator.port.status import Code, RpcError
from userlock_emulator.tasks import protos
from userlock_emulator.tasks.protos import Queue, duration
from userlock_emulator.tasks.queues import described_queue


@pytest.fixture
def subject() -> Subject:
    return Subject()


def test_defaults(subject: Subject) -> None:
    queue = subject.create_queue(state=Queue.PAUSED, purge_time=protos.timestamp(SECOND))
    assert queue.state == Queue.RUNNING
    assert not queue.HasField("purge_time")
    limits, retry = queue.rate_limits, queue.retry_config
    assert (limits.max_dispatches_per_second, limits.max_burst_size) == (500, 100)
    assert limits.max_concurrent_dispatches == 1000
    assert (retry.max_attempts, retry.max_doublings) == (100, 16)
    assert (retry.min_backoff, retry.max_backoff) == (
        duration(SECOND // 10),
        duration(3600 * SECOND),
    )
    assert subject.call("GetQueue", name=QUEUE) == queue


RATES, RETRIES = "rate_limits", "retry_config"


@pytest.mark.parametrize(
    ("field", "settings", "text"),
    [
        (RATES, {"max_dispatches_per_second": -1}, "maxDispatchesPerSecond cannot be negative."),
        (RATES, {"max_dispatches_per_second": math.nan}, "maxDispatchesPerSecond cannot be"),
        (
            RATES,
            {"max_dispatches_per_second": 500.1},
            "maxDispatchesPerSecond must be less than or equal to 500.",
        ),
        (
            RATES,
            {"max_concurrent_dispatches": 5001},
            "maxConcurrentDispatches must be less than or equal to 5000.",
        ),
        (RETRIES, {"max_attempts": -2}, "maxAttempts must be greater or equal to -1."),
        (RATES, {"max_concurrent_dispatches": -1}, "maxConcurrentDispatches cannot be negative."),
        (RETRIES, {"max_doublings": -1}, "maxDoublings cannot be negative."),
        (RETRIES, {"max_retry_duration": {"seconds": -1}}, "maxRetryDuration cannot be negative."),
        (RETRIES, {"min_backoff": {"seconds": -1}}, "minBackoff cannot be negative."),
        (
            RETRIES,
            {"min_backoff": {"seconds": 2}, "max_backoff": {"seconds": 1}},
            "minBackoff must be less than or equal to RetryConfig.maxBackoff.",
        ),
    ],
)
def test_settings_out_of_range(
    subject: Subject, field: str, settings: dict[str, Any], text: str
) -> None:
    given: Any = {field: settings}
    with pytest.raises(RpcError) as raised:
        subject.create_queue(**given)
    assert raised.value.code is Code.INVALID_ARGUMENT
    prefix = "RateLimits" if field == RATES else "RetryConfig"
    assert raised.value.message.startswith(f"{prefix}.{text}")
    # An update has the same bounds, and changes nothing when it fails.
    before = subject.create_queue()
    with pytest.raises(RpcError, match=text.split(" ")[0]):
        subject.call("UpdateQueue", queue={"name": QUEUE, **given})
    assert subject.call("GetQueue", name=QUEUE) == before


def test_names(subject: Subject) -> None:
    subject.create_queue()
    with refused(r"^Queue already exists$", Code.ALREADY_EXISTS):
        subject.create_queue()
    with refused():
        subject.call("CreateQueue", parent=f"{LOCATION}2", queue={"name": QUEUE})
    with refused("http_target", Code.UNIMPLEMENTED):
        subject.create_queue(f"{QUEUE}2", http_target={"http_method": 2})


def test_a_deleted_name_cannot_be_used_for_three_days(subject: Subject) -> None:
    subject.create_queue()
    subject.create("a")
    subject.call("DeleteQueue", name=QUEUE)
    for wait, possible in ((0, False), (3 * 86400 - 1, False), (1, True)):
        subject.clock.advance(wait)
        if possible:
            subject.create_queue()
        else:
            with refused("existed too recently", Code.FAILED_PRECONDITION):
                subject.create_queue()
            with pytest.raises(RpcError, match="existed too recently"):
                subject.call("UpdateQueue", queue={"name": QUEUE})
    assert not subject.call("ListTasks", parent=QUEUE).tasks


def test_missing_queues(subject: Subject) -> None:
    for rpc in ("GetQueue", "PauseQueue", "ResumeQueue", "PurgeQueue", "ListTasks"):
        with refused(r"^Queue does not exist. If you just", Code.NOT_FOUND):
            subject.call(rpc, **{"parent" if rpc == "ListTasks" else "name": QUEUE})
    with pytest.raises(RpcError, match=r"^Requested entity was not found.$"):
        subject.call("DeleteQueue", name=QUEUE)
    with pytest.raises(RpcError, match=r"^Queue does not exist."):
        subject.create("a")


class TestUpdate:
    def update(self, subject: Subject, paths: list[str], **settings: Any) -> Any:
        mask = {"paths": paths}
        return subject.call("UpdateQueue", queue={"name": QUEUE, **settings}, update_mask=mask)

    def test_masks(self, subject: Subject) -> None:
        subject.create_queue(
            rate_limits={"max_dispatches_per_second": 5, "max_concurrent_dispatches": 6},
            retry_config={"max_attempts": 7},
        )
        changes = {
            "rate_limits": {"max_dispatches_per_second": 8, "max_concurrent_dispatches": 9},
            "retry_config": {"max_attempts": 10},
        }
        queue = self.update(subject, ["rate_limits.max_dispatches_per_second"], **changes)
        assert queue.rate_limits.max_dispatches_per_second == 8
        assert queue.rate_limits.max_burst_size == 8
        assert queue.rate_limits.max_concurrent_dispatches == 6
        assert queue.retry_config.max_attempts == 7
        queue = self.update(subject, ["retry_config"], **changes)
        assert queue.retry_config.max_attempts == 10
        assert queue.rate_limits.max_concurrent_dispatches == 6
        # All fields: the ones that are not given get their defaults.
        queue = self.update(subject, [], retry_config={"max_attempts": 3})
        assert queue.retry_config.max_attempts == 3
        assert queue.rate_limits.max_dispatches_per_second == 500

    def test_it_creates_and_ignores_fields_that_are_output_only(self, subject: Subject) -> None:
        for paths in ([], [], ["state", "purge_time"]):
            queue = self.update(
                subject, paths, state=Queue.PAUSED, purge_time=protos.timestamp(SECOND)
            )
            assert queue == subject.call("GetQueue", name=QUEUE)
            assert queue.state == Queue.RUNNING
            assert not queue.HasField("purge_time")

    @pytest.mark.parametrize("path", ["x", "rate_limits.x", "state.x.y", "rate_limits..x", ""])
    def test_unknown_fields(self, subject: Subject, path: str) -> None:
        before = subject.create_queue()
        if path == "state.x.y":
            assert self.update(subject, [path]) == before
            return
        with refused("update_mask"):
            self.update(subject, [path])


class TestList:
    def names(self, subject: Subject, **fields: Any) -> list[str]:
        names: list[str] = []
        token = ""
        while True:
            response = subject.call("ListQueues", parent=LOCATION, page_token=token, **fields)
            names += [queue.name.rpartition("/")[2] for queue in response.queues]
            token = response.next_page_token
            if not token:
                return names

    @pytest.mark.parametrize("size", [0, 2])
    def test_pages(self, subject: Subject, size: int) -> None:
        for name in ("b", "a", "c", "A-1"):
            subject.create_queue(f"{LOCATION}/queues/{name}")
        subject.create_queue("projects/p/locations/l2/queues/z")
        assert self.names(subject, page_size=size) == ["A-1", "a", "b", "c"]

    def test_filter(self, subject: Subject) -> None:
        subject.create_queue()
        subject.create_queue(f"{LOCATION}/queues/other")
        subject.call("PauseQueue", name=QUEUE)
        assert self.names(subject, filter="state: PAUSED") == ["q"]
        assert self.names(subject, filter='state="RUNNING"') == ["other"]
        with refused(code=Code.UNIMPLEMENTED):
            self.names(subject, filter="name: q")

    @pytest.mark.parametrize("fields", [{"page_size": -1}, {"page_token": "?"}, {"parent": "x"}])
    def test_wrong_requests(self, subject: Subject, fields: dict[str, Any]) -> None:
        with refused():
            subject.call("ListQueues", **{"parent": LOCATION, **fields})


def test_a_queue_by_its_name_and_settings() -> None:
    settings = (
        "max-dispatches-per-second=0.5,max-concurrent-dispatches=3,max-attempts=unlimited,"
        "max-retry-duration=3600s,min-backoff=0.5s,max-backoff=10s,max-doublings=2"
    )
    queue = described_queue(f"{QUEUE},{settings}")
    assert queue.name == QUEUE
    assert queue.rate_limits.max_dispatches_per_second == 0.5
    assert queue.rate_limits.max_concurrent_dispatches == 3
    retry = queue.retry_config
    assert (retry.max_attempts, retry.max_doublings) == (-1, 2)
    assert retry.max_retry_duration == duration(HOUR)
    assert retry.min_backoff == duration(SECOND // 2)
    assert described_queue(QUEUE).retry_config.max_attempts == 100


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ("max-attempt=3", "no setting 'max-attempt'; there are: max-dispatches-per-second, "),
        ("max-attempts", "malformed"),
        ("max-attempts=many", "malformed"),
        ("min-backoff=5", "malformed"),
        ("max-attempts=-2", "greater or equal to -1"),
        ("min-backoff=20s,max-backoff=10s", "less than or equal"),
        ("max-dispatches-per-second=501", "less than or equal to 500"),
    ],
)
def test_settings_that_are_refused(settings: str, text: str) -> None:
    with refused(text):
        described_queue(f"{QUEUE},{settings}")
