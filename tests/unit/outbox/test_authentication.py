"""Callers: settings that let in nobody or anybody are refused; certificates are kept."""

from __future__ import annotations

import contextlib
import json
import threading
import types
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

import userlock
from userlock.outbox import authentication
from userlock.outbox.authentication import (
    AFTER_FAILURE_SECONDS,
    AGAIN_SECONDS,
    FRESH_SECONDS,
    USABLE_SECONDS,
    AppEngineHeader,
    Caller,
    Callers,
    Certificates,
    OidcToken,
    Refused,
    SharedSecret,
)
from userlock.testing import ManualClock

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
        {"certs_url": 5},
        {"audience": None},
        {"service_account": 5},
        {"issuers": None},
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


# --- certificates ---------------------------------------------------------------------------------


class Issuer:
    """Publishes keys, or fails."""

    def __init__(self, clock: ManualClock) -> None:
        self.keys = ["a"]
        self.fetched = 0
        self.down = False
        self.document: bytes | None = None
        self.certificates = Certificates("https://issuer.example", clock, self.fetch)

    def fetch(self, url: str) -> bytes:
        assert url == "https://issuer.example"
        self.fetched += 1
        if self.down:
            raise TimeoutError("timed out")
        return self.document or json.dumps({key: f"-----BEGIN {key}" for key in self.keys}).encode()


@pytest.fixture
def issuer(clock: ManualClock) -> Issuer:
    return Issuer(clock)


def test_they_are_kept_for_an_hour(issuer: Issuer, clock: ManualClock) -> None:
    assert issuer.fetched == 0, "nothing is fetched before it is needed"
    for _ in range(3):
        assert issuer.certificates.get("a") == b"-----BEGIN a"
    clock.advance(FRESH_SECONDS - 1)
    assert issuer.certificates.get("a")
    assert issuer.fetched == 1
    clock.advance(1)
    issuer.keys = ["b"]
    assert issuer.certificates.get("a") is None, "a key that was withdrawn"
    assert issuer.fetched == 2


def test_strangers_who_name_unknown_keys_cause_one_fetch_a_minute(
    issuer: Issuer, clock: ManualClock
) -> None:
    issuer.certificates.get("a")
    for number in range(100):
        assert issuer.certificates.get(f"unknown-{number}") is None
    assert issuer.fetched == 1
    clock.advance(AGAIN_SECONDS)
    issuer.keys.append("new")
    assert issuer.certificates.get("new") == b"-----BEGIN new"
    assert issuer.certificates.get("unknown") is None
    assert issuer.fetched == 2


def test_an_outage_before_the_first(issuer: Issuer, clock: ManualClock) -> None:
    issuer.down = True
    for _ in range(10):
        with pytest.raises(Refused, match="timed out"):
            issuer.certificates.get("a")
    assert issuer.fetched == 1, "each request waits for the issuer"
    clock.advance(AFTER_FAILURE_SECONDS)
    issuer.down = False
    assert issuer.certificates.get("a") == b"-----BEGIN a"


def test_an_answer_in_small_pieces_ends_in_time(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "_TIMEOUT_SECONDS", 0.05)
    last_piece = threading.Event()
    issuer.certificates._fetch = lambda _: last_piece.wait(10)  # type: ignore[assignment, return-value]
    with pytest.raises(Refused, match="no answer within"):
        issuer.certificates.get("a")
    last_piece.set()


def test_reading_an_answer_in_small_pieces_ends(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read1(_: int) -> bytes:
        clock.advance(1)
        return b" "

    answer = types.SimpleNamespace(status=200, read1=read1)
    opened = contextlib.nullcontext(answer)
    monkeypatch.setattr(urllib.request.OpenerDirector, "open", lambda *_, **__: opened)
    monkeypatch.setattr(authentication, "time", types.SimpleNamespace(monotonic=clock.now))
    with pytest.raises(ValueError, match="too slowly"):
        authentication._fetch("https://issuer.example/certificates")


def test_an_outage_later_is_survived_for_hours(issuer: Issuer, clock: ManualClock) -> None:
    issuer.certificates.get("a")
    issuer.down = True
    clock.advance(FRESH_SECONDS)
    while clock.now() < USABLE_SECONDS - 600:
        assert issuer.certificates.get("a") == b"-----BEGIN a"
        with pytest.raises(Refused):  # it may be a new key: nobody can tell
            issuer.certificates.get("unknown")
        clock.advance(600)
    clock.advance(1200)
    with pytest.raises(Refused):
        issuer.certificates.get("a")
    issuer.down = False
    clock.advance(AFTER_FAILURE_SECONDS)
    assert issuer.certificates.get("a") == b"-----BEGIN a"


@pytest.mark.parametrize(
    "document",
    [
        *(b"null", b"[]", b"{}", b"<html>", b'"a"', b"\xff", b"[" * 9999, b'{"error": "no"}'),
        *(b'{"keys": []}', b'{"keys": 7}', b'{"keys": [{"kty": "RSA", "kid": "a"}]}'),
    ],
)
def test_a_document_of_another_kind_is_an_outage(issuer: Issuer, document: bytes) -> None:
    issuer.document = document
    with pytest.raises(Refused):
        issuer.certificates.get("a")
