"""The RPCs on tasks, and their limits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.emulator.subject import refused
from tests.unit.emulator.tasks.subject import HOUR, OK, QUEUE, SECOND, Subject
from userlock_emulator.port.status import Code, RpcError
from userlock_emulator.tasks import protos
from userlock_emulator.tasks.attempts import Answer
from userlock_emulator.tasks.protos import Task, microseconds, timestamp

DAY = 24 * HOUR


@pytest.fixture
def subject() -> Subject:
    subject = Subject()
    subject.create_queue()
    return subject


def test_a_created_task(subject: Subject) -> None:
    now = subject.clock()
    task = subject.create(
        "a",
        http_request={"body": b"hello"},
        dispatch_count=5,
        response_count=5,
        view=Task.FULL,
        create_time=timestamp(1),
    )
    assert task.name == f"{QUEUE}/tasks/a"
    assert microseconds(task.schedule_time) == now
    assert microseconds(task.create_time) == now // SECOND * SECOND
    assert microseconds(task.dispatch_deadline) == 600 * SECOND
    assert (task.http_request.http_method, task.view) == (protos.POST, Task.BASIC)
    assert (task.dispatch_count, task.response_count) == (0, 0), "they are output only"
    assert not task.HasField("first_attempt")
    assert not task.http_request.body
    assert subject.get("a") == task
    full = subject.get("a", Task.FULL)
    assert (full.http_request.body, full.view) == (b"hello", Task.FULL)


class TestNames:
    @pytest.mark.parametrize("end", ["executed", "deleted", "purged", "exhausted"])
    def test_a_used_one_is_refused_for_a_day(self, subject: Subject, end: str) -> None:
        if end == "exhausted":
            queue = {"name": QUEUE, "retry_config": {"max_attempts": 1}}
            subject.call("UpdateQueue", queue=queue)
        subject.create("a")
        if end == "executed":
            subject.finish(subject.begin("a"), OK)
        elif end == "deleted":
            subject.call("DeleteTask", name=f"{QUEUE}/tasks/a")
        elif end == "purged":
            subject.call("PurgeQueue", name=QUEUE)
        else:
            subject.finish(subject.begin("a"), Answer(status=500))
        for wait in (0, 86399):
            subject.clock.advance(wait)
            with refused("existed too recently", Code.ALREADY_EXISTS):
                subject.create("a")
            for call in (
                lambda: subject.get("a"),
                lambda: subject.call("DeleteTask", name=f"{QUEUE}/tasks/a"),
                lambda: subject.call("RunTask", name=f"{QUEUE}/tasks/a"),
            ):
                with refused(r"^The task no longer exists", Code.NOT_FOUND):
                    call()
        subject.clock.advance(1)
        subject.create("a")

    def test_others(self, subject: Subject) -> None:
        names = {subject.create().name for _ in range(50)}
        assert len(names) == 50
        assert len({name.rpartition("/")[2][:2] for name in names}) > 1
        with pytest.raises(RpcError):
            subject.create("a", url="ftp://x")
        for request in (f"{QUEUE}/tasks/a", f"{QUEUE}x/tasks/a"):
            with pytest.raises(RpcError, match=r"^Requested entity was not found.$"):
                subject.call("GetTask", name=request)
        subject.create("a")  # the refused one has not used it up
        with refused(r"^Requested entity already exists$", Code.ALREADY_EXISTS):
            subject.create("a")
        task = Task(name=f"{QUEUE}-2/tasks/a", http_request={"url": "http://127.0.0.1/"})
        with pytest.raises(RpcError, match="The queue name from request"):
            subject.call("CreateTask", parent=QUEUE, task=task)
        with pytest.raises(RpcError, match="message_type is required"):
            subject.call("CreateTask", parent=QUEUE, task=Task())


class TestTimes:
    @pytest.mark.parametrize(("ahead", "shown"), [(-HOUR, 0), (0, 0), (1, 1), (30 * DAY, 30 * DAY)])
    def test_schedule(self, subject: Subject, ahead: int, shown: int) -> None:
        now = subject.clock()
        task = subject.create("a", schedule_time=timestamp(now + ahead))
        assert microseconds(task.schedule_time) == now + shown

    @pytest.mark.parametrize("ahead", [30 * DAY + 1, 2**62])
    def test_too_far(self, subject: Subject, ahead: int) -> None:
        with pytest.raises(RpcError, match="must be no more than 720h in the future"):
            subject.create("a", schedule_time=timestamp(subject.clock() + ahead))

    @pytest.mark.parametrize(
        ("kind", "seconds", "good"),
        [
            ("http_request", 14, False), ("http_request", 15, True), ("http_request", 1800, True),
            ("http_request", 1801, False), ("http_request", -1, False),
            ("app_engine_http_request", 86415, True), ("app_engine_http_request", 86416, False),
            ("app_engine_http_request", 14, False),
        ],
    )  # fmt: skip
    def test_deadline(self, subject: Subject, kind: str, seconds: int, good: bool) -> None:
        request = {"url": "http://127.0.0.1/"} if kind == "http_request" else {}
        fields: dict[str, Any] = {kind: request, "dispatch_deadline": {"seconds": seconds}}
        if good:
            assert subject.create("a", **fields).dispatch_deadline.seconds == seconds
        else:
            with pytest.raises(RpcError, match="dispatchDeadline must be between"):
                subject.create("a", **fields)


class TestSize:
    @pytest.mark.parametrize(
        ("kind", "most"), [("http_request", 2**20), ("app_engine_http_request", 100 * 1024)]
    )
    def test_bounds(self, subject: Subject, kind: str, most: int) -> None:
        base: dict[str, Any] = {"url": "http://127.0.0.1/"} if kind == "http_request" else {}

        def create(size: int) -> None:
            # The name counts, too.
            empty = Task(name=f"{QUEUE}/tasks/a{size}", **{kind: {**base, "body": b"x" * size}})
            fields: dict[str, Any] = {kind: {**base, "body": b"x" * (2 * size - empty.ByteSize())}}
            subject.create(f"a{size}", **fields)

        create(most)
        with refused("Task size too large"):
            create(most + 1)


class TestHttpRequest:
    @pytest.mark.parametrize(
        ("url", "text"),
        [
            ("", "HttpRequest.url is required."),
            ("ftp://example.com", "HttpTarget.url must start"),
            ("http://[::1", "HttpRequest.url is not a valid URL."),
            ("http://h/" + "a" * 2075, "HttpRequest.url must be less than or equal to 2083"),
            ("http://h/" + "ü" * 400, "HttpRequest.url must be less than or equal to 2083"),
        ],
    )
    def test_urls(self, subject: Subject, url: str, text: str) -> None:
        with pytest.raises(RpcError) as raised:
            subject.create("a", url=url)
        assert raised.value.code is Code.INVALID_ARGUMENT
        assert raised.value.message.startswith(text)

    def test_methods_without_a_body_and_bounds(self, subject: Subject) -> None:
        for method in ("GET", "HEAD", "DELETE", "OPTIONS"):
            subject.create(http_request={"http_method": method})
            with pytest.raises(RpcError, match=f"not allowed for HTTP method {method}"):
                subject.create(http_request={"http_method": method, "body": b"x"})
        with pytest.raises(RpcError, match="http_method"):
            subject.create(http_request={"http_method": 99})
        subject.create(url="http://h/" + "a" * 2074)
        subject.create(http_request={"headers": {"X": "y" * (80 * 1024 - 2)}})
        with pytest.raises(RpcError, match="less than 80KB"):
            subject.create(http_request={"headers": {"X": "y" * (80 * 1024 - 1)}})

    @pytest.mark.parametrize("headers", [{"A B": "x"}, {"": "x"}, {"A": "x\r\nB: y"}])
    def test_headers_that_would_be_others(self, subject: Subject, headers: dict[str, str]) -> None:
        with pytest.raises(RpcError, match="header"):
            subject.create("a", http_request={"headers": headers})

    def test_tokens(self, subject: Subject) -> None:
        with refused("oauth_token", Code.UNIMPLEMENTED):
            subject.create("a", http_request={"oauth_token": {"service_account_email": "a@b"}})
        with pytest.raises(RpcError, match="service_account_email"):
            subject.create("a", http_request={"oidc_token": {"audience": "x"}})

    def test_shown_headers(self, subject: Subject) -> None:
        """Recorded from the service: names as given, and the service's user agent."""
        sent = {"content-type": "application/json", "X-Mixed-Case": "kept", "user-agent": "mine"}
        shown = subject.create("a", http_request={"headers": sent, "body": b"{}"})
        assert dict(shown.http_request.headers) == {
            "content-type": "application/json",
            "X-Mixed-Case": "kept",
            "User-Agent": "Google-Cloud-Tasks",
        }


class TestAppEngine:
    AGENT = "AppEngine-Google; (+http://code.google.com/appengine)"

    def test_shown_headers(self, subject: Subject) -> None:
        request = {"headers": {"X-Mixed-Case": "kept"}, "body": b"hello"}
        shown = subject.create("a", app_engine_http_request=request)
        assert dict(shown.app_engine_http_request.headers) == {
            "Content-Length": "5",
            "Content-Type": "application/octet-stream",
            "User-Agent": self.AGENT,
            "X-Mixed-Case": "kept",
        }
        request = {"headers": {"User-Agent": "mine"}}
        shown = subject.create("b", app_engine_http_request=request)
        assert dict(shown.app_engine_http_request.headers) == {"User-Agent": f"mine {self.AGENT}"}

    def test_address(self, subject: Subject) -> None:
        routing = {"service": "worker", "version": "v1", "host": "ignored"}
        shown = subject.create("a", app_engine_http_request={"app_engine_routing": routing})
        request = shown.app_engine_http_request
        assert request.relative_uri == "/"
        assert request.app_engine_routing.host == "v1.worker.p.appspot.com"

    @pytest.mark.parametrize("uri", ["http://h/", "/\r\n", "/" + "a" * 2083])
    def test_wrong_uris(self, subject: Subject, uri: str) -> None:
        with pytest.raises(RpcError, match="relative_uri"):
            subject.create("a", app_engine_http_request={"relative_uri": uri})

    def test_only_post_and_put_have_a_body(self, subject: Subject) -> None:
        with pytest.raises(RpcError, match="not allowed"):
            subject.create("a", app_engine_http_request={"http_method": "PATCH", "body": b"x"})


class TestList:
    def names(self, subject: Subject, **fields: Any) -> tuple[list[str], int]:
        names: list[str] = []
        token, pages = "", 0
        while True:
            response = subject.call("ListTasks", parent=QUEUE, page_token=token, **fields)
            names += [task.name.rpartition("/")[2] for task in response.tasks]
            token, pages = response.next_page_token, pages + 1
            if not token:
                return names, pages

    def test_a_page_has_a_bound_in_bytes(self, subject: Subject) -> None:
        for name in "abcdef":
            subject.create(name, http_request={"body": b"x" * 1_000_000})
        names, pages = self.names(subject, response_view=Task.FULL)
        assert (names, pages) == (list("abcdef"), 2)
        assert self.names(subject) == (list("abcdef"), 1)

    @pytest.mark.parametrize("fields", [{"page_size": -1}, {"page_token": "ü"}])
    def test_wrong_requests(self, subject: Subject, fields: dict[str, Any]) -> None:
        with refused():
            subject.call("ListTasks", parent=QUEUE, **fields)


def test_run_counts_at_once(subject: Subject) -> None:
    subject.call("PauseQueue", name=QUEUE)
    subject.create("a", schedule_time=timestamp(subject.clock() + HOUR))
    shown = subject.call("RunTask", name=f"{QUEUE}/tasks/a")
    assert shown.dispatch_count == 1
    assert [attempt.number for attempt in subject.sent.now] == [1]


class TestBatches:
    def create(self, subject: Subject, *urls: str, request_id: str = "") -> Any:
        tasks = [
            {"name": f"{QUEUE}/tasks/t{index}", "http_request": {"url": url}}
            for index, url in enumerate(urls)
        ]
        requests = [{"parent": QUEUE, "task": task} for task in tasks]
        operation = subject.call(
            "BatchCreateTasks", parent=QUEUE, requests=requests, request_id=request_id
        )
        assert operation.done
        response, metadata = protos.BatchCreateTasksResponse(), protos.BatchCreateTasksMetadata()
        assert operation.response.Unpack(response)
        assert operation.metadata.Unpack(metadata)
        assert subject.call("GetOperation", name=operation.name) == operation
        return response, metadata

    def test_a_request_id_stands_for_one_batch(self, subject: Subject) -> None:
        first = self.create(subject, "http://h/", request_id="one")
        assert self.create(subject, "http://h/", request_id="one") == first
        _, metadata = self.create(subject, "http://h/", request_id="two")
        assert metadata.failed_requests[0].code == Code.ALREADY_EXISTS

    def test_bounds(self, subject: Subject) -> None:
        for count in (0, 101):
            with pytest.raises(RpcError, match="1 to 100"):
                self.create(subject, *["http://h/"] * count)
        self.create(subject, *["http://h/"] * 100)
        with pytest.raises(RpcError, match="queue of the batch"):
            subject.call("BatchCreateTasks", parent=QUEUE, requests=[{"parent": QUEUE + "x"}])
