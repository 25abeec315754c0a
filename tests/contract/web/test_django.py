"""Test the Django middleware: scope, priority and release of each request, and answers."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from google.cloud import ndb

import userlock
from tests.contract.web.djangos import django_client
from userlock.contrib.django import UserLockMiddleware


class Piggy(userlock.UserModel):
    """One user's savings, locked by their key's name."""

    _lock_id_from_key = userlock.key_id
    coins = ndb.IntegerProperty(default=0)


def put_a_coin(request: HttpRequest, user_id: str) -> HttpResponse:
    with userlock.global_lock(user_id, wait_timeout=1):
        piggy = Piggy.get_by_id(user_id) or Piggy(id=user_id)
        piggy.coins += 1
        piggy.put()
    return HttpResponse(str(piggy.coins))


def forget_the_lock(request: HttpRequest) -> HttpResponse:
    Piggy(id="ann").put()
    return HttpResponse("never")


def tell_scope(request: HttpRequest) -> HttpResponse:
    scope = userlock.current_scope()
    assert scope is not None
    return HttpResponse(f"{scope.priority.value} {scope.request}")


def forget_the_future(request: HttpRequest) -> HttpResponse:
    userlock.acquire_lock("ann")
    piggy = Piggy.get_by_id("ann")
    with (
        userlock.scope(settings.USERLOCK["service"]),
        userlock.suppress("another process, without the lock"),
    ):
        other = piggy.key.get(use_cache=False)
        other.coins += 1
        other.put()
    piggy.put_async()
    return HttpResponse("fine")


def fail(request: HttpRequest) -> HttpResponse:
    userlock.acquire_lock("ann")
    raise ZeroDivisionError


urls = types.ModuleType("urls_of_the_test")
urls.urlpatterns = [  # type: ignore[attr-defined]
    path("users/<user_id>", put_a_coin),
    path("forget-the-lock", forget_the_lock),
    path("forget-the-future", forget_the_future),
    path("scope", tell_scope),
    path("tasks/scope", tell_scope),
    path("fail", fail),
]


@pytest.fixture
def client(ndb_client: ndb.Client, service: userlock.LockService) -> Iterator[Client]:
    with django_client(
        ROOT_URLCONF=urls,
        MIDDLEWARE=["userlock.contrib.django.UserLockMiddleware"],
        USERLOCK={"client": ndb_client, "service": service, "batch_prefixes": ["/tasks/"]},
    ) as client:
        yield client


def test_a_view_locks_gets_modifies_and_puts(client: Client, service: userlock.LockService) -> None:
    assert [client.post("/users/ann").content for _ in range(2)] == [b"1", b"2"]
    assert service.holder("ann") is None
    assert userlock.current_scope() is None


@pytest.mark.parametrize(
    ("where", "headers", "priority"),
    [
        ("/scope", {}, "interactive"),
        ("/tasks/scope", {}, "batch"),
        ("/scope", {"X-CloudScheduler": "true"}, "batch"),
    ],
)
def test_the_request_says_the_priority(
    client: Client, where: str, headers: dict[str, str], priority: str
) -> None:
    assert client.get(where, headers=headers).content == f"{priority} GET {where}".encode()


def test_a_lock_that_is_not_to_be_had_is_a_problem_document(
    client: Client, service: userlock.LockService
) -> None:
    service.acquire("ann", request="POST /elsewhere")
    answer = client.post("/users/ann")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["error"] == "LockTimeout"
    assert b"elsewhere" not in answer.content


def test_a_violation_is_logged_and_tells_the_client_nothing(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    answer = client.post("/forget-the-lock")
    assert answer.status_code == 500
    assert b"Piggy" not in answer.content
    assert caplog.text.count("CreatedWithoutLock:") == 1
    with override_settings(DEBUG=True), pytest.raises(userlock.CreatedWithoutLock):
        Client().post("/forget-the-lock")


def test_a_refused_write_that_nobody_waited_for_is_409(
    client: Client, service: userlock.LockService
) -> None:
    client.post("/users/ann")
    assert client.post("/forget-the-future").status_code == 409
    assert service.holder("ann") is None


def test_any_other_error_is_djangos_and_the_lock_is_released(
    client: Client, service: userlock.LockService
) -> None:
    assert client.post("/fail").status_code == 500
    assert service.holder("ann") is None
    assert userlock.current_scope() is None


@pytest.mark.parametrize(
    "wrong", [{"contention_status": 500}, {"batch_prefixes": "/tasks/"}, {"nonsense": 1}]
)
def test_a_setting_that_makes_no_sense(client: Client, wrong: dict[str, Any]) -> None:
    with (
        override_settings(USERLOCK=wrong),
        pytest.raises(ImproperlyConfigured, match="USERLOCK: "),
    ):
        UserLockMiddleware(lambda request: HttpResponse())
