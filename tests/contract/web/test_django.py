"""Test what only the Django middleware does: its settings, and `DEBUG`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path

import userlock
from tests.contract.web.djangos import django_client
from tests.contract.web.sites import site
from userlock.contrib.django import UserLockMiddleware
from userlock.errors import PutWithoutLock
from userlock.lock.configuration import defaults


@pytest.mark.parametrize("debug", [False, True])
def test_a_violation_is_raised_while_debugging(service: userlock.LockService, debug: bool) -> None:
    def view(path: str) -> str:
        raise PutWithoutLock(key=None, kind="User", lock_id="ann", read_at=None, put_at=None)

    with site("django", view, service=service) as ask, override_settings(DEBUG=debug):
        answer = ask("/")
    assert answer.status == 500
    assert ("application/problem+json" in str(answer.headers)) is not debug


@pytest.mark.parametrize(
    "wrong", [{"contention_status": 500}, {"batch_prefixes": "/tasks/"}, {"nonsense": 1}]
)
def test_a_setting_that_makes_no_sense(wrong: dict[str, Any]) -> None:
    with (
        django_client(USERLOCK=wrong),
        pytest.raises(ImproperlyConfigured, match="USERLOCK: "),
    ):
        UserLockMiddleware(lambda request: HttpResponse())


def take_for_a_block() -> None:
    with userlock.global_lock("ann"):
        pass


@pytest.mark.parametrize(
    ("take", "error"),
    [
        (lambda: userlock.acquire_lock("ann"), userlock.NoScope),
        (take_for_a_block, userlock.NoService),
    ],
    ids=["until-the-scope-ends", "for-a-block"],
)
def test_a_stream_that_needs_a_scope_is_told_where_it_is(
    service: userlock.LockService,
    take: Callable[[], object],
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defaults, "service", None)

    def stream(request: HttpRequest) -> StreamingHttpResponse:
        def steps() -> Iterator[bytes]:
            yield b"begin"
            take()

        take()  # here there is one
        return StreamingHttpResponse(steps())

    urls = (path("", stream),)
    names = ["userlock.contrib.django.UserLockMiddleware"]
    with django_client(
        ROOT_URLCONF=urls, MIDDLEWARE=names, USERLOCK={"service": service}
    ) as client:
        answer = client.get("/")
        assert answer.status_code == 200
        with pytest.raises(error, match=r"Flask\s+and\s+Django\s+end"):
            b"".join(answer)
