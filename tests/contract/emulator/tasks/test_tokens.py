"""OIDC tokens, as a receiver verifies them."""

from __future__ import annotations

import json
import urllib.request
from base64 import urlsafe_b64decode
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from google.auth import exceptions
from google.auth.transport import requests
from google.oauth2 import id_token

from tests.contract.emulator.tasks.conftest import Bench, started
from tests.contract.emulator.tasks.target import Target
from userlock_emulator import tasks

EMAIL = "robot@p.iam.gserviceaccount.com"


def token_of(target: Target) -> str:
    scheme, _, token = target.received[-1].headers["Authorization"].partition(" ")
    assert scheme == "Bearer"
    return token


def verified(token: str, audience: str | None, certs_url: str) -> dict[str, Any]:
    claims = id_token.verify_token(token, requests.Request(), audience, certs_url=certs_url)
    return dict(claims)


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url) as reply:  # noqa: S310 - always http
        return json.load(reply)


def deliver(bench: Bench, **token: str) -> str:
    bench.create(http_request={"oidc_token": {"service_account_email": EMAIL, **token}})
    bench.settle()
    return token_of(bench.target)


class Redirected:
    """A transport of google.auth that asks the emulator instead of Google."""

    def __init__(self, server: tasks.CloudTasks) -> None:
        self.host = server.host
        self.request = requests.Request()

    def __call__(self, url: str, **arguments: Any) -> Any:
        inside = url.replace("https://www.googleapis.com", f"http://{self.host}")
        assert inside != url
        return self.request(inside, **arguments)


def test_as_a_token_of_google(bench: Bench) -> None:
    """A receiver that knows Google's issuer and certificates only needs another transport."""
    token = deliver(bench)  # for the address of the target, unless another audience is asked for
    claims = id_token.verify_oauth2_token(token, Redirected(bench.server), bench.target.url)
    assert (claims["email"], claims["email_verified"]) == (EMAIL, True)


def test_what_is_refused(bench: Bench) -> None:
    token = deliver(bench, audience="me")
    with pytest.raises(exceptions.GoogleAuthError, match="audience"):
        verified(token, "somebody else", bench.server.certs_url)
    head, claims, signature = token.split(".")
    with pytest.raises(ValueError, match="signature"):
        verified(f"{head}.{claims}.{signature[::-1]}", "me", bench.server.certs_url)
    with tasks.start() as other, pytest.raises(exceptions.GoogleAuthError, match=r"[Cc]ertificate"):
        verified(token, "me", other.certs_url)


def test_the_key_set(bench: Bench) -> None:
    """The signature is that of the key in the set, checked by the numbers in it."""

    def number(text: str) -> int:
        return int.from_bytes(urlsafe_b64decode(text + "=="))

    token = deliver(bench)
    (key,) = fetched(bench.server.jwks_url)["keys"]
    signed, _, signature = token.rpartition(".")
    head = json.loads(urlsafe_b64decode(signed.split(".")[0] + "=="))
    assert (head["alg"], head["kid"]) == (key["alg"], key["kid"])
    public = rsa.RSAPublicNumbers(number(key["e"]), number(key["n"])).public_key()
    padded = urlsafe_b64decode(signature + "==")
    public.verify(padded, signed.encode(), padding.PKCS1v15(), hashes.SHA256())


def test_discovery_with_an_issuer_of_its_own() -> None:
    with Target() as target, started(target, issuer="http://issuer.example") as bench:
        server = bench.server
        bench.create(http_request={"oidc_token": {"service_account_email": EMAIL}})
        server.wait_empty()
        found = fetched(f"http://{server.host}/.well-known/openid-configuration")
        claims = verified(token_of(target), target.url, server.certs_url)
        assert claims["iss"] == found["issuer"] == "http://issuer.example"
        assert found["jwks_uri"] == server.jwks_url
