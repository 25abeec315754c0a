"""Settings that would let in nobody, or anybody, are refused at the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import userlock
from userlock.outbox.authentication import (
    AppEngineHeader,
    Caller,
    Callers,
    OidcToken,
    Refused,
    SharedSecret,
)

SECRET = "correct-horse-battery-staple"


@pytest.mark.parametrize(
    "secrets",
    [(), ("",), ("short",), (SECRET, ""), (SECRET, "short"), ("ü" * 30,), ("a b" * 30,),
     ("a\n" * 30,), (None,), (b"bytes" * 10,)],
)  # fmt: skip
def test_a_secret_that_can_be_guessed_or_sent_by_nobody(secrets: Any) -> None:
    with pytest.raises(userlock.ConfigurationError) as raised:
        SharedSecret(*secrets)
    assert "short" not in str(raised.value).replace("shorter", "")


def test_a_secret_is_not_shown() -> None:
    caller = SharedSecret(SECRET)
    assert SECRET not in f"{caller!r} {vars(caller)!r}"


@pytest.mark.parametrize(
    "options",
    [
        {"audience": ""},
        {"audience": []},
        {"audience": [""]},
        {"service_account": ""},
        {"service_account": ()},
        {"service_account": [None]},
        {"issuers": []},
        {"certs_url": "http://issuer.example/certs"},
        {"certs_url": "http://127.0.0.1.example/certs"},
        {"certs_url": "file:///etc/passwd"},
        {"certs_url": ""},
    ],
)
def test_a_token_of_anybody_is_not_accepted(options: dict[str, Any]) -> None:
    good: dict[str, Any] = {
        "audience": "https://shop.example",
        "service_account": "jobs@shop.example",
    }
    OidcToken(**good)
    (name,) = options
    with pytest.raises(userlock.ConfigurationError, match=f"OidcToken: {name} must"):
        OidcToken(**{**good, **options})


@pytest.mark.parametrize("callers", [[], [AppEngineHeader], ["secret"], [None], [lambda: None]])
def test_callers_that_are_none(callers: Any) -> None:
    with pytest.raises(userlock.ConfigurationError):
        Callers(callers)


class Refuses:
    def __init__(self, status: int) -> None:
        self.status = status

    def check(self, header: Callable[[str], str | None]) -> None:
        raise Refused(self.status, "no")


@pytest.mark.parametrize(
    ("statuses", "status"),
    [([401], 401), ([401, 403], 403), ([403, 401], 403), ([401, 503, 403], 503)],
)
def test_the_refusal_of_several(statuses: list[int], status: int) -> None:
    callers: list[Caller] = [Refuses(each) for each in statuses]
    with pytest.raises(Refused) as refused:
        Callers(callers).check({}.get)  # type: ignore[arg-type]
    assert refused.value.status == status


def test_a_check_that_fails_lets_nobody_in() -> None:
    class Broken:
        def check(self, header: Callable[[str], str | None]) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Callers([Broken()]).check({}.get)  # type: ignore[arg-type]
