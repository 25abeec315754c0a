"""Credentials of all kinds at the endpoint, in each integration: who is let in."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.outbox.endpoints import issuer as issuers
from tests.contract.outbox.endpoints.conftest import (
    JOBS,
    SECRET,
    Anybody,
    Shop,
    is_bare,
    oidc,
)
from tests.contract.outbox.endpoints.issuer import Issuer, token
from tests.contract.outbox.endpoints.sites import Call
from userlock.outbox.authentication import AppEngineHeader, CloudRunToken, SharedSecret

# --- credentials --------------------------------------------------------------------------------

_VALID = token()
_HEAD, _BODY, _SIGNATURE = _VALID.split(".")
_OTHER_BODY = issuers.coded(issuers.claims(sub="2"))

_REMOVED = "SIGNATURE_REMOVED_BY_GOOGLE"

#: Values of Authorization, with the status; 200 for the account's tokens.
TOKENS: dict[str, tuple[str | None, int]] = {
    "none": (None, 401),
    "empty": ("", 401),
    "no token": ("Bearer", 401),
    "a space": ("Bearer ", 401),
    "Basic": ("Basic YTpi", 401),
    "no scheme": (_VALID, 401),
    "garbage": ("Bearer garbage", 401),
    "dots": ("Bearer ..", 401),
    "not base64": ("Bearer a.b.c", 401),
    "nested": (f"Bearer {issuers.coded(b'[' * 3000)}.{_BODY}.{_SIGNATURE}", 401),
    "a list": (f"Bearer {issuers.coded(b'[]')}.{_BODY}.{_SIGNATURE}", 401),
    "long": (f"Bearer {'a' * 20_000}", 401),
    "two": (f"Bearer {_VALID},Bearer {_VALID}", 401),
    "valid": (f"Bearer {_VALID}", 200),
    "valid, lower case": (f"bearer {_VALID}", 200),
    "among several audiences": (f"Bearer {token(aud=[issuers.AUDIENCE])}", 401),
    "other audience": (f"Bearer {token(aud='https://other.example/')}", 401),
    "part of the audience": (f"Bearer {token(aud='https://shop.example/')}", 401),
    "no audience": (f"Bearer {token(aud=None)}", 401),
    "other account": (f"Bearer {token(email='eve@shop.iam.gserviceaccount.com')}", 403),
    "account in upper case": (f"Bearer {token(email=issuers.ACCOUNT.upper())}", 403),
    "no account": (f"Bearer {token(email=None)}", 403),
    "account not verified": (f"Bearer {token(email_verified=False)}", 403),
    "account verified by a text": (f"Bearer {token(email_verified='false')}", 403),
    "expired": (f"Bearer {token(iat=1_700_000_000, exp=1_700_003_600)}", 401),
    "never expires": (f"Bearer {token(exp=None)}", 401),
    "expires never": (f"Bearer {token(exp='never')}", 401),
    "of tomorrow": (f"Bearer {token(iat=4_000_000_000, exp=4_000_003_600)}", 401),
    "other issuer": (f"Bearer {token(iss='https://accounts.example')}", 401),
    "no issuer": (f"Bearer {token(iss=None)}", 401),
    "as Cloud Run passes it on": (f"Bearer {_HEAD}.{_BODY}.{_REMOVED}", 401),
    "unsigned": (f"Bearer {token(header={'alg': 'none'})}", 401),
    "no algorithm": (f"Bearer {token(header={'alg': None})}", 401),
    "signed with the public key": (f"Bearer {token(header={'alg': 'HS256'})}", 401),
    "said to be ES256": (f"Bearer {token(header={'alg': 'ES256'})}", 401),
    "other key": (f"Bearer {token('key-2', header={'kid': issuers.KEY_ID})}", 401),
    "unknown key": (f"Bearer {token('key-2')}", 401),
    "names no key": (f"Bearer {token(header={'kid': None})}", 401),
    "names a list of keys": (f"Bearer {token(header={'kid': [issuers.KEY_ID]})}", 401),
    "no signature": (f"Bearer {_HEAD}.{_BODY}.", 401),
    "cut": (f"Bearer {_VALID[:-9]}", 401),
    "claims of another": (
        f"Bearer {_HEAD}.{issuers.coded(issuers.claims(sub='2'))}.{_SIGNATURE}",
        401,
    ),
    "the secret": (f"Bearer {SECRET}", 401),
}


@pytest.mark.parametrize("form", ["certificates", "keys"])
def test_each_token(site: Callable[..., Call], shop: Shop, issuer: Issuer, form: str) -> None:
    call = site(oidc(issuer, form))
    for name, (value, status) in TOKENS.items():
        key = shop.stage()
        shop.ran.clear()
        answer = call("POST", JOBS, {} if value is None else {"Authorization": value}, key.encode())
        assert answer.status == status, name
        assert bool(shop.ran) is (status == 200), name
        assert (answer.headers.get("WWW-Authenticate") == "Bearer") is (status == 401), name
        assert status == 200 or is_bare(answer), name


#: Claims, of which only the first ones let in.
CLAIMS: dict[str, tuple[dict[str, Any], int]] = {
    "valid": ({}, 200),
    "several audiences": ({"aud": [issuers.AUDIENCE]}, 401),
    "other audience": ({"aud": "https://other.example/"}, 401),
    "no audience": ({"aud": None}, 401),
    "other account": ({"email": "eve@shop.iam.gserviceaccount.com"}, 403),
    "no account": ({"email": None}, 403),
    "account not verified": ({"email_verified": False}, 403),
    "expired": ({"iat": 1_700_000_000, "exp": 1_700_003_600}, 401),
    "never expires": ({"exp": None}, 401),
    "expires never": ({"exp": "never"}, 401),
    "of tomorrow": ({"iat": 4_000_000_000, "exp": 4_000_003_600}, 401),
    "other issuer": ({"iss": "https://accounts.example"}, 401),
}


@pytest.mark.parametrize("place", ["cloud run", "elsewhere"])
def test_tokens_whose_signature_cloud_run_has_checked(
    site: Callable[..., Call],
    shop: Shop,
    issuer: Issuer,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There alone a token counts without its signature; with one, it counts as everywhere."""
    if place == "cloud run":
        monkeypatch.setenv("K_SERVICE", "shop")
    else:
        monkeypatch.delenv("K_SERVICE", raising=False)
    call = site(oidc(issuer, "certificates", CloudRunToken))
    sent = {
        f"{name}, without its signature": (
            f"Bearer {_HEAD}.{issuers.coded(issuers.claims(**changes))}.{_REMOVED}",
            status if place == "cloud run" else 401,
        )
        for name, (changes, status) in CLAIMS.items()
    }
    sent |= {name: (value, status) for name, (value, status) in TOKENS.items() if value is not None}
    del sent["as Cloud Run passes it on"]
    for lead in ("", "a", "a.b.c."):
        sent[f"no token: {lead!r}"] = (f"Bearer {lead}{_REMOVED}", 401)
    sent["no claims"] = (f"Bearer {_HEAD}.{issuers.coded(b'[]')}.{_REMOVED}", 401)
    for name, (value, status) in sent.items():
        key = shop.stage()
        shop.ran.clear()
        answer = call("POST", JOBS, {"Authorization": value}, key.encode())
        assert (answer.status, bool(shop.ran)) == (status, status == 200), name
    assert "CloudRunToken(audience=" in repr(oidc(issuer, "certificates", CloudRunToken))


def test_what_is_refused_would_run(site: Callable[..., Call], shop: Shop) -> None:
    """The negative control: without the check, each of these requests runs the job."""
    call = site(Anybody())
    for value, _ in TOKENS.values():
        key = shop.stage()
        shop.ran.clear()
        answer = call("POST", JOBS, {} if value is None else {"Authorization": value}, key.encode())
        assert (answer.status, len(shop.ran)) == (200, 1)


@pytest.mark.parametrize("platform", ["", "GAE_ENV", "GAE_APPLICATION"])
def test_app_engine_s_headers_count_there_alone(
    site: Callable[..., Call], shop: Shop, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GAE_ENV", "GAE_APPLICATION"):
        monkeypatch.delenv(name, raising=False)
    if platform:
        monkeypatch.setenv(platform, "standard")
    call = site(AppEngineHeader())
    proofs = {"X-AppEngine-QueueName": "jobs", "X-AppEngine-Cron": "true"}
    others = {"X-CloudTasks-QueueName": "jobs", "X-CloudScheduler": "true", "X-AppEngine": "1"}
    sent = {**proofs, **others, "Authorization": f"Bearer {_VALID}"}
    for count in range(len(sent) + 1):
        for names in itertools.combinations(sent, count):
            key = shop.stage()
            shop.ran.clear()
            answer = call("POST", JOBS, {name: sent[name] for name in names}, key.encode())
            good = bool(platform and proofs.keys() & set(names))
            assert (answer.status, bool(shop.ran)) == (200 if good else 403, good), names


@pytest.mark.parametrize(
    "headers",
    [{"X-AppEngine-QueueName": ""}, {"X-AppEngine-Cron": "false"}, {"X-AppEngine-Cron": ""}],
)
def test_app_engine_s_headers_say_something(
    site: Callable[..., Call],
    shop: Shop,
    headers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GAE_ENV", "standard")
    call = site(AppEngineHeader())
    assert call("POST", JOBS, headers, shop.stage().encode()).status == 403
    assert shop.ran == []


def test_each_secret(site: Callable[..., Call], shop: Shop) -> None:
    old = "an-older-secret-of-this-site"
    call = site(SharedSecret(SECRET, old))
    good = [f"Bearer {SECRET}", f"bearer {old}"]
    bad = [
        *(
            None,
            "",
            "Bearer",
            f"Basic {SECRET}",
            SECRET,
            f"Bearer {SECRET}x",
            f"Bearer {SECRET[1:]}",
        ),
        *(f"Bearer {SECRET.upper()}", f"Bearer {SECRET} {SECRET}", f"Bearer {SECRET},{SECRET}"),
        *(f"Bearer {SECRET[:-1]}", f"Bearer {_VALID}", "Bearer ü"),
    ]
    for value in good + bad:
        key = shop.stage()
        shop.ran.clear()
        answer = call("POST", JOBS, {} if value is None else {"Authorization": value}, key.encode())
        assert (answer.status, bool(shop.ran)) == ((200, True) if value in good else (401, False))


def test_any_of_several_callers(
    site: Callable[..., Call], shop: Shop, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = site(oidc(issuer), SharedSecret(SECRET), AppEngineHeader())
    monkeypatch.setenv("GAE_ENV", "standard")
    credentials = [
        {"Authorization": f"Bearer {_VALID}"},
        {"Authorization": f"Bearer {SECRET}"},
        {"X-AppEngine-QueueName": "jobs"},
    ]
    for headers in credentials:
        assert call("POST", JOBS, headers, shop.stage().encode()).status == 200
    wrong = {"Authorization": "Bearer wrong"}
    assert call("POST", JOBS, wrong, shop.stage().encode()).status == 403
    monkeypatch.delenv("GAE_ENV")
    assert call("POST", JOBS, credentials[2], shop.stage().encode()).status == 403


# --- certificates -------------------------------------------------------------------------------


def test_certificates_are_kept(site: Callable[..., Call], shop: Shop, issuer: Issuer) -> None:
    call = site(oidc(issuer))
    for _ in range(5):
        headers = {"Authorization": f"Bearer {_VALID}"}
        assert call("POST", JOBS, headers, shop.stage().encode()).status == 200
    headers = {"Authorization": f"Bearer {token('key-2')}"}
    assert call("POST", JOBS, headers, shop.stage().encode()).status == 401
    issuer.status = 500
    headers = {"Authorization": f"Bearer {_VALID}"}
    assert call("POST", JOBS, headers, shop.stage().encode()).status == 200
    assert issuer.fetched == 1


@pytest.mark.parametrize("status", [500, 302, 404, 204])
def test_without_certificates_a_token_cannot_be_verified(
    site: Callable[..., Call], shop: Shop, issuer: Issuer, status: int
) -> None:
    """A redirection is not followed: it might lead to a place without TLS."""
    issuer.status = status
    call = site(oidc(issuer))
    answer = call("POST", JOBS, {"Authorization": f"Bearer {_VALID}"}, shop.stage().encode())
    assert (answer.status, shop.ran) == (503, [])
    assert is_bare(answer)
    # Who shows no token learns nothing of it, and causes no request.
    assert call("POST", JOBS, {}, b"x").status == 401
    assert call("POST", JOBS, {"Authorization": "Bearer a.b.c"}, b"x").status == 401
    assert issuer.fetched == 1


def test_an_issuer_that_is_gone(site: Callable[..., Call], shop: Shop) -> None:
    with issuers.issuer() as gone:
        caller = oidc(gone)
    call = site(caller)
    answer = call("POST", JOBS, {"Authorization": f"Bearer {_VALID}"}, shop.stage().encode())
    assert (answer.status, shop.ran) == (503, [])
