"""Test what only the Django middleware does: its settings, and `DEBUG`."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import override_settings

import userlock
from tests.contract.web.djangos import django_client
from tests.contract.web.sites import site
from userlock.contrib.django import UserLockMiddleware
from userlock.errors import PutWithoutLock


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
