"""The life of a task: attempts, their counts, retries, the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.emulator.tasks.subject import OK, QUEUE, SECOND, Subject
from userlock_emulator.port.status import Code, RpcError, StorageError
from userlock_emulator.tasks.attempts import Answer
from userlock_emulator.tasks.protos import Task as TaskMessage
from userlock_emulator.tasks.protos import has_field, microseconds

TIMED_OUT = Answer(code=Code.DEADLINE_EXCEEDED, text="no response before the deadline")


def subject_with(**retry: Any) -> Subject:
    subject = Subject()
    for name in ("min_backoff", "max_backoff", "max_retry_duration"):
        if name in retry:
            retry[name] = {"seconds": retry[name]}
    subject.create_queue(retry_config=retry)
    return subject


def gone(subject: Subject, task_id: str) -> bool:
    try:
        subject.get(task_id)
    except RpcError:
        return True
    return False


def test_counts_and_times() -> None:
    subject = subject_with(min_backoff=10)
    created = subject.clock()
    subject.create("a")
    subject.clock.advance(1)
    attempt = subject.begin("a")
    begun = subject.get("a")
    assert (begun.dispatch_count, begun.response_count) == (1, 0)
    assert microseconds(begun.first_attempt.dispatch_time) == created + SECOND
    assert microseconds(begun.last_attempt.schedule_time) == created
    assert not begun.last_attempt.HasField("response_time")
    subject.clock.advance(2)
    subject.finish(attempt, Answer(status=503))
    failed = subject.get("a")
    assert (failed.dispatch_count, failed.response_count) == (1, 1)
    assert microseconds(failed.last_attempt.response_time) == created + 3 * SECOND
    assert failed.last_attempt.response_status.code == Code.UNAVAILABLE
    assert failed.last_attempt.response_status.message == "UNAVAILABLE(14): HTTP status code 503"
    assert microseconds(failed.schedule_time) == created + 13 * SECOND
    # Of the first attempt, only the time is kept.
    assert not failed.first_attempt.HasField("response_time")
    subject.clock.advance(10)
    subject.finish(subject.begin("a"), TIMED_OUT)
    late = subject.get("a")
    assert (late.dispatch_count, late.response_count) == (2, 1)
    assert microseconds(late.first_attempt.dispatch_time) == created + SECOND
    assert late.last_attempt.response_status.code == Code.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("status", "ends"),
    [
        *((status, True) for status in (200, 299)),
        *((status, False) for status in (199, 300, 404, 429, 503)),
    ],
)
def test_success_ends_it_and_anything_else_is_retried(status: int, ends: bool) -> None:
    subject = subject_with()
    subject.create("a")
    if ends:
        subject.finish(subject.begin("a"), Answer(status=status))
        assert gone(subject, "a")
    else:
        assert subject.fail("a", status) == 0.1


@pytest.mark.parametrize(
    ("retry", "seconds_between", "attempts"),
    [
        ({"max_attempts": 3}, 1000, 3),
        ({"max_attempts": 3, "max_retry_duration": 100}, 10, 11),  # both have to be reached
        ({"max_attempts": 3, "max_retry_duration": 10}, 100, 3),
        ({"max_attempts": -1, "max_retry_duration": 100}, 10, 11),
    ],
)
def test_exhausted(retry: dict[str, int], seconds_between: float, attempts: int) -> None:
    subject = subject_with(**retry)
    subject.create("a")
    made = 0
    while not gone(subject, "a"):
        subject.finish(subject.begin("a"), Answer(status=400))
        subject.clock.advance(seconds_between)
        made += 1
    assert made == attempts
    with pytest.raises(RpcError, match="existed too recently"):
        subject.create("a")


def test_retries_of_one_task() -> None:
    if not has_field(TaskMessage, "retry_config"):
        pytest.skip("this release of google-cloud-tasks has no retry settings of a task")
    subject = subject_with(min_backoff=10)
    subject.create("a", retry_config={"min_backoff": {"seconds": 3}, "max_attempts": 2})
    assert subject.fail("a") == 3
    subject.finish(subject.begin("a"), Answer(status=400))
    assert gone(subject, "a")
    with pytest.raises(RpcError, match="maxAttempts"):
        subject.create("b", retry_config={"max_attempts": -2})


@pytest.mark.parametrize(("asked", "wait"), [(0, 10.0), (5, 10.0), (20, 20.0), (3600, 60.0)])
def test_retry_after_is_kept_within_the_longest_backoff(asked: float, wait: float) -> None:
    subject = subject_with(min_backoff=10, max_backoff=60)
    subject.create("a")
    subject.finish(subject.begin("a"), Answer(status=503, retry_after=asked))
    assert (microseconds(subject.get("a").schedule_time) - subject.clock()) / SECOND == wait


@pytest.mark.parametrize("succeeds", [True, False])
def test_of_two_deliveries_a_success_or_the_later_end_counts(succeeds: bool) -> None:
    subject = subject_with(max_attempts=2)
    subject.create("a")
    first, second = subject.begin("a"), subject.begin("a")
    subject.finish(second, OK if succeeds else Answer(status=404))
    if not succeeds:
        shown = subject.get("a")  # the other delivery decides
        assert shown.last_attempt.response_status.code == Code.NOT_FOUND
    subject.finish(first, Answer(status=500))
    assert gone(subject, "a")


def test_the_end_of_a_deleted_task_does_nothing() -> None:
    subject = subject_with()
    subject.create("a")
    attempt = subject.begin("a")
    with subject.storage.change() as tables:
        found = tables.queue(QUEUE)
        assert found is not None
        tables.delete_tasks(found[0], None)
    subject.create("a")
    subject.finish(attempt, OK)
    assert subject.get("a").dispatch_count == 0


class TestHeaders:
    """The counts that targets see are as recorded from the service."""

    def seen(self, statuses: list[int | None], **task: Any) -> list[tuple[int, int, Any, str]]:
        subject = subject_with()
        subject.create("a", **task)
        seen = []
        for status in statuses:
            attempt = subject.begin("a")
            seen.append(
                (attempt.number - 1, attempt.executions, attempt.previous, attempt.retry_reason)
            )
            answer = TIMED_OUT if status is None else Answer(status=status)
            subject.finish(attempt, answer)
        return seen

    def test_http(self) -> None:
        assert self.seen([503, 404, 429, 500, 302, 200]) == [
            (0, 0, None, ""),
            (1, 0, 503, ""),
            (2, 1, 404, ""),
            (3, 2, 429, ""),
            (4, 2, 500, ""),
            (5, 3, 302, ""),
        ]
        assert self.seen([None, 200])[1] == (1, 0, 504, "")

    def test_app_engine(self) -> None:
        seen = self.seen([503, 404, 200], app_engine_http_request={})
        assert seen[1:] == [(1, 1, 503, "App Error"), (2, 2, 404, "App Error")]
        seen = self.seen([None, 200], app_engine_http_request={})
        assert seen[1] == (1, 0, 0, "Instance Unavailable")


class TestRestart:
    def test_a_file_of_another_program_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "tasks.sqlite3").write_text("hello" * 1000)
        with pytest.raises(StorageError, match="cannot use"):
            Subject(tmp_path)
