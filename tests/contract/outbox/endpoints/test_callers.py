"""One table: credentials of all kinds, and which callers accept them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.contract.outbox.endpoints import issuer as issuers
from tests.contract.outbox.endpoints.conftest import SECRET
from tests.contract.outbox.endpoints.issuer import Issuer, claims, coded, token
from userlock.outbox.authentication import (
    AppEngineHeader,
    Caller,
    Callers,
    CloudRunToken,
    OidcToken,
    Refused,
    SharedSecret,
)

_VALID = token()
_HEAD, _BODY, _SIGNATURE = _VALID.split(".")
_REMOVED = "SIGNATURE_REMOVED_BY_GOOGLE"

#: Tokens by their claims, with the status.
CLAIMS: dict[str, tuple[dict[str, Any], int]] = {
    "valid": ({}, 200),
    "several audiences": ({"aud": [issuers.AUDIENCE]}, 401),
    "other audience": ({"aud": "https://other.example/"}, 401),
    "part of the audience": ({"aud": "https://shop.example/"}, 401),
    "no audience": ({"aud": None}, 401),
    "other account": ({"email": "eve@shop.iam.gserviceaccount.com"}, 403),
    "account in upper case": ({"email": issuers.ACCOUNT.upper()}, 403),
    "no account": ({"email": None}, 403),
    "account not verified": ({"email_verified": False}, 403),
    "account verified by a text": ({"email_verified": "false"}, 403),
    "expired": ({"iat": 1_700_000_000, "exp": 1_700_003_600}, 401),
    "never expires": ({"exp": None}, 401),
    "expires never": ({"exp": "never"}, 401),
    "of tomorrow": ({"iat": 4_000_000_000, "exp": 4_000_003_600}, 401),
    "other issuer": ({"iss": "https://accounts.example"}, 401),
    "no issuer": ({"iss": None}, 401),
}
#: The value of Authorization; the status of a token's caller, and of one for Cloud Run there.
TOKENS: dict[str, tuple[str | None, int, int]] = {
    "none": (None, 401, 401),
    "empty": ("", 401, 401),
    "no token": ("Bearer ", 401, 401),
    "Basic": ("Basic YTpi", 401, 401),
    "no scheme": (_VALID, 401, 401),
    "dots": ("Bearer ..", 401, 401),
    "not base64": ("Bearer a.b.c", 401, 401),
    "nested": (f"Bearer {coded(b'[' * 3000)}.{_BODY}.{_SIGNATURE}", 401, 401),
    "a list": (f"Bearer {coded(b'[]')}.{_BODY}.{_SIGNATURE}", 401, 401),
    "long": (f"Bearer {'a' * 20_000}", 401, 401),
    "two": (f"Bearer {_VALID},Bearer {_VALID}", 401, 401),
    "lower case": (f"bearer {_VALID}", 200, 200),
    "unsigned": (f"Bearer {token(header={'alg': 'none'})}", 401, 401),
    "no algorithm": (f"Bearer {token(header={'alg': None})}", 401, 401),
    "signed with the public key": (f"Bearer {token(header={'alg': 'HS256'})}", 401, 401),
    "said to be ES256": (f"Bearer {token(header={'alg': 'ES256'})}", 401, 401),
    "other key": (f"Bearer {token('key-2', header={'kid': issuers.KEY_ID})}", 401, 401),
    "unknown key": (f"Bearer {token('key-2')}", 401, 401),
    "names no key": (f"Bearer {token(header={'kid': None})}", 401, 401),
    "names a list of keys": (f"Bearer {token(header={'kid': [issuers.KEY_ID]})}", 401, 401),
    "no signature": (f"Bearer {_HEAD}.{_BODY}.", 401, 401),
    "cut": (f"Bearer {_VALID[:-9]}", 401, 401),
    "claims of another": (f"Bearer {_HEAD}.{coded(claims(sub='2'))}.{_SIGNATURE}", 401, 401),
    "the secret": (f"Bearer {SECRET}", 401, 401),
    "removed: no claims": (f"Bearer {_HEAD}.{coded(b'[]')}.{_REMOVED}", 401, 401),
    **{
        f"removed: {lead!r} before it": (f"Bearer {lead}{_REMOVED}", 401, 401)
        for lead in ("", "a", "a.b.c.")
    },
    **{
        name: (f"Bearer {token(**changes)}", status, status)
        for name, (changes, status) in CLAIMS.items()
    },
    **{
        f"removed: {name}": (f"Bearer {_HEAD}.{coded(claims(**changes))}.{_REMOVED}", 401, status)
        for name, (changes, status) in CLAIMS.items()
    },
}


def status(caller: Caller, headers: dict[str, str | None]) -> int:
    """Return the status of a request with these headers."""
    try:
        caller.check(headers.get)
    except Refused as refused:
        return refused.status
    return 200


def oidc(issuer: Issuer, kind: type[OidcToken] = OidcToken) -> Caller:
    return kind(
        audience=issuers.AUDIENCE,
        service_account=issuers.ACCOUNT,
        certs_url=issuer.certs_url(),
    )


@pytest.mark.parametrize("name", TOKENS)
def test_tokens(issuer: Issuer, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """On Cloud Run alone, and for its own caller, a token counts without its signature."""
    value, known, unsigned = TOKENS[name]
    headers = {"Authorization": value}
    monkeypatch.setenv("K_SERVICE", "shop")
    assert status(oidc(issuer), headers) == known
    assert status(oidc(issuer, CloudRunToken), headers) == unsigned
    monkeypatch.delenv("K_SERVICE")
    assert status(oidc(issuer, CloudRunToken), headers) == known


#: Of the header that Cloud Run verifies, and of the one that anybody can write beside it.
BESIDE = {
    "forged beside an eve's": (
        token(**CLAIMS["other account"][0]),
        f"{_HEAD}.{_BODY}.{_REMOVED}",
        403,
    ),
    "forged beside an empty one": ("", f"{_HEAD}.{_BODY}.{_REMOVED}", 401),
    "an app's own beside ours": (_VALID, "an-app-s-own", 200),
}


@pytest.mark.parametrize("name", BESIDE)
def test_the_header_that_cloud_run_has_verified(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    verified, other, expected = BESIDE[name]
    monkeypatch.setenv("K_SERVICE", "shop")
    headers: dict[str, str | None] = {
        "Authorization": f"Bearer {other}",
        "X-Serverless-Authorization": f"Bearer {verified}",
    }
    assert status(oidc(issuer, kind=CloudRunToken), headers) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((f"Bearer {SECRET}", 200), ("bearer an-older-secret-of-this-site", 200)),
        *((None, 401), ("", 401), ("Bearer", 401), (f"Basic {SECRET}", 401), (SECRET, 401)),
        *((f"Bearer {SECRET}x", 401), (f"Bearer {SECRET[1:]}", 401)),
        *((f"Bearer {SECRET[:-1]}", 401), ("Bearer ü", 401), (f"Bearer {_VALID}", 401)),
        *((f"Bearer {SECRET.upper()}", 401), (f"Bearer {SECRET},{SECRET}", 401)),
        (f"Bearer {SECRET} {SECRET}", 401),
    ],
)  # fmt: skip
def test_secrets(value: str | None, expected: int) -> None:
    caller = SharedSecret(SECRET, "an-older-secret-of-this-site")
    assert status(caller, {"Authorization": value}) == expected


@pytest.mark.parametrize("platform", ["", "GAE_ENV", "GAE_APPLICATION"])
def test_app_engine_s_headers_count_there_alone(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GAE_ENV", "GAE_APPLICATION"):
        monkeypatch.delenv(name, raising=False)
    if platform:
        monkeypatch.setenv(platform, "standard")
    proofs = {"X-AppEngine-QueueName": "jobs", "X-AppEngine-Cron": "true"}
    others = {"X-CloudTasks-QueueName": "jobs", "X-CloudScheduler": "true", "X-AppEngine": "1"}
    sent = {**proofs, **others, "Authorization": f"Bearer {_VALID}"}
    for count in range(len(sent) + 1):
        for names in itertools.combinations(sent, count):
            good = bool(platform and proofs.keys() & set(names))
            headers: dict[str, str | None] = {name: sent[name] for name in names}
            assert status(AppEngineHeader(), headers) == (200 if good else 403), names
    for empty in ("X-AppEngine-QueueName", ""), ("X-AppEngine-Cron", "false"):
        assert status(AppEngineHeader(), dict([empty])) == 403


def test_any_of_several_callers(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    callers = Callers([oidc(issuer), SharedSecret(SECRET), AppEngineHeader()])
    queue: dict[str, str | None] = {"X-AppEngine-QueueName": "jobs"}
    monkeypatch.setenv("GAE_ENV", "standard")
    for good in (
        {"Authorization": f"Bearer {_VALID}"},
        {"Authorization": f"Bearer {SECRET}"},
        queue,
    ):
        assert status(callers, dict(good)) == 200
    assert status(callers, {"Authorization": "Bearer wrong"}) == 403
    monkeypatch.delenv("GAE_ENV")
    assert status(callers, queue) == 403


# --- certificates -------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [500, 302, 404, 204])
def test_without_certificates_a_token_cannot_be_verified(issuer: Issuer, answer: int) -> None:
    """A redirection is not followed: it might lead to a place without TLS."""
    issuer.status = answer
    caller = oidc(issuer)
    assert status(caller, {"Authorization": f"Bearer {_VALID}"}) == 503
    # A caller without a token learns nothing of it, and causes no request.
    assert status(caller, {"Authorization": None}) == 401
    assert status(caller, {"Authorization": "Bearer a.b.c"}) == 401
    assert issuer.fetched == 1
