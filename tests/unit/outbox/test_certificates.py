"""Certificates of an issuer: how long they are kept, and when they are fetched."""

from __future__ import annotations

import json

import pytest

from userlock.outbox.authentication import (
    AFTER_FAILURE_SECONDS,
    AGAIN_SECONDS,
    FRESH_SECONDS,
    USABLE_SECONDS,
    Certificates,
    Refused,
)
from userlock.testing import ManualClock


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
