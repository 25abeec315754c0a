"""Requests to the site, and the responses that they get."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import time
import uuid
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

POINTS = 15
FINISH = "/api/learners/{}/exercises/primes/finish"


@dataclass(frozen=True)
class Answer:
    """One response; `lock` is the site's report on the lock."""

    status: int
    seconds: float
    body: Any
    lock: str


def call(url: str, method: str, path: str, body: object = None) -> Answer:
    """Send one request on a connection of its own, so that no request is ever sent twice.

    Each has an idempotency key of its own, for the views that need one, and is the learner's whom
    its path names.
    """
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    with contextlib.closing(connection):
        payload = None if body is None else json.dumps(body)
        headers = {"Idempotency-Key": str(uuid.uuid4())}
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
    how = re.search(r'lock;desc="(\w+)"', response.getheader("Server-Timing") or "")
    return Answer(
        status=response.status,
        seconds=seconds,
        body=json.loads(text) if is_json else text.decode(),
        lock=how[1] if how else "",
    )


def new_learner(url: str, learner_id: str) -> None:
    answer = call(url, "POST", "/api/learners", {"id": learner_id, "name": learner_id})
    assert answer.status == 201, answer


def learner(url: str, learner_id: str) -> dict[str, Any]:
    answer = call(url, "GET", f"/api/learners/{learner_id}")
    assert answer.status == 200, answer
    learner: dict[str, Any] = answer.body["learner"]
    return learner
