"""Concurrent clients of the site, and the responses that they get."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

POINTS = 15
FINISH = "/api/learners/{}/exercises/primes/finish"

_SERVER_TIMING = re.compile(r'lock;desc="(?P<how>\w+)";dur=(?P<ms>[\d.]+)')


@dataclass(frozen=True)
class Answer:
    """One response; `lock_ms` and `lock` are the site's report on the lock."""

    status: int
    seconds: float
    body: Any
    lock: str
    lock_ms: float
    retry_after: str | None

    @property
    def accepted(self) -> bool:
        return 200 <= self.status < 300


def call(
    url: str, method: str, path: str, body: object = None, *, key: str = "", timeout: float = 30
) -> Answer:
    """Send one request on a connection of its own, so that no request is ever sent twice.

    Each has an idempotency key of its own, for the views that need one, and is the learner's whom
    its path names.
    """
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout)
    with contextlib.closing(connection):
        payload = None if body is None else json.dumps(body)
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        if path.startswith("/api/learners/"):
            name = path.split("/")[3]
            headers["Authorization"] = f"Basic {base64.b64encode(f'{name}:'.encode()).decode()}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        started = time.perf_counter()
        connection.request(method, path, payload, headers)
        response = connection.getresponse()
        text = response.read()
        seconds = time.perf_counter() - started
    is_json = "json" in (response.getheader("Content-Type") or "")
    timing = _SERVER_TIMING.search(response.getheader("Server-Timing") or "")
    return Answer(
        status=response.status,
        seconds=seconds,
        body=json.loads(text) if is_json else text.decode(),
        lock=timing["how"] if timing else "",
        lock_ms=float(timing["ms"]) if timing else 0.0,
        retry_after=response.getheader("Retry-After"),
    )


def new_learner(url: str, learner_id: str) -> None:
    answer = call(url, "POST", "/api/learners", {"id": learner_id, "name": learner_id})
    assert answer.status == 201, answer


def learner(url: str, learner_id: str) -> dict[str, Any]:
    answer = call(url, "GET", f"/api/learners/{learner_id}")
    assert answer.status == 200, answer
    learner: dict[str, Any] = answer.body["learner"]
    return learner


class Progress:
    """A counter of responses, on which a test can wait."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def one_more(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait_for(self, count: int, timeout: float = 60) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._count >= count, timeout):
                raise TimeoutError(f"{self._count} of {count} answers after {timeout} s")


def run_clients(
    url: str,
    paths: Sequence[str],
    *,
    requests_each: int | None = None,
    until: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> list[Answer]:
    """Run one client thread for each path, which posts to it repeatedly.

    Each stops after `requests_each` responses, or when `until()` is true.
    """
    together = threading.Barrier(len(paths))

    def client(path: str) -> list[Answer]:
        answers: list[Answer] = []
        together.wait(30)
        while not until() and (requests_each is None or len(answers) < requests_each):
            answers.append(call(url, "POST", path))
            if progress is not None:
                progress.one_more()
        return answers

    with ThreadPoolExecutor(len(paths)) as pool:
        return [answer for answers in pool.map(client, paths) for answer in answers]


def statuses(answers: Iterable[Answer]) -> dict[int, int]:
    """Count the responses by status, for messages."""
    return dict(Counter(answer.status for answer in answers))
