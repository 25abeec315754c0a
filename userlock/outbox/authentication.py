"""Callers of the outbox's web endpoints. Anybody else is refused.

    OidcToken         Cloud Tasks and Cloud Scheduler, by the token that Google signs for them
    CloudRunToken     the same on a Cloud Run service that IAM guards
    AppEngineHeader   App Engine's task queues and cron, on App Engine
    SharedSecret      others, by a secret

One of them has to accept a request. Each check returns or raises `Refused`: a mistake refuses.

Sources: https://cloud.google.com/tasks/docs/creating-http-target-tasks#token,
https://cloud.google.com/docs/authentication/get-id-token,
https://cloud.google.com/run/docs/troubleshooting#signature-removed,
https://cloud.google.com/appengine/docs/standard/writing-and-responding-to-request-headers
and RFC 9110, section 11 (401 names the scheme, 403 does not ask for another credential).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from userlock.bounded_calls import BoundedCalls
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.errors import ConfigurationError
from userlock.fork import reset_in_child
from userlock.platforms import on_app_engine, on_cloud_run

Header = Callable[[str], str | None]

GOOGLE_CERTS_URL = "https://www.googleapis.com/oauth2/v1/certs"
GOOGLE_ISSUERS = ("https://accounts.google.com", "accounts.google.com")
#: The clocks of two machines differ. In seconds.
_SKEW_SECONDS = 30
_MOST_TOKEN = 8_000
#: In place of a signature.
_REMOVED_BY_CLOUD_RUN = ".SIGNATURE_REMOVED_BY_GOOGLE"
#: Cloud Run verifies this header where a request has it, and `Authorization` elsewhere.
_SERVERLESS = "X-Serverless-Authorization"
_LEAST_SECRET = 16
#: The certificates are fetched again after that time, in seconds.
FRESH_SECONDS = 3600.0
#: Used for so long while the issuer does not answer, in seconds.
USABLE_SECONDS = 6 * 3600.0
#: Between two fetches for unknown keys, and after a fetch that has failed.
AGAIN_SECONDS = 60.0
AFTER_FAILURE_SECONDS = 5.0
#: For the whole of a fetch: the time-out of a connection is for each of its pieces.
_TIMEOUT_SECONDS = 3.0
_FETCHES = BoundedCalls(8, "userlock-certificates")
_MOST_BYTES = 200_000


class Refused(Exception):
    """A request is refused; the reason is for the log, not for the caller.

    With 401 without a valid credential, 403 if another one is needed, 503 if it cannot be checked.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Caller(Protocol):
    """One who may call. Thread-safe."""

    def check(self, header: Header) -> None:
        """Return if the request is this caller's; raise `Refused` if not."""
        ...


class OidcToken:
    """Accept the OIDC tokens of a service account, as Cloud Tasks and Cloud Scheduler send them.

    google-auth verifies signature (RS256), issuer, expiry, audience and e-mail. The issuer's
    certificates are kept for hours.

    Args:
        audience: whom the token is made out to (the services name by default the URL that they
            call), or several.
        service_account: the e-mail of the account, or several.
        certs_url: the issuer's certificates, by key id.
        issuers: the accepted ones.
        clock: for the age of the certificates.

    Raises:
        ConfigurationError: there is no audience or account, or the certificates would come
            without TLS from another machine.
    """

    def __init__(
        self,
        *,
        audience: str | Iterable[str],
        service_account: str | Iterable[str],
        certs_url: str = GOOGLE_CERTS_URL,
        issuers: Iterable[str] = GOOGLE_ISSUERS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._audiences = _several("audience", audience)
        self._accounts = _several("service_account", service_account)
        self._issuers = _several("issuers", issuers)
        parts = urlsplit(str(certs_url))
        local = parts.hostname in ("127.0.0.1", "localhost", "::1")
        if not (parts.scheme == "https" or (parts.scheme == "http" and local)):
            raise ConfigurationError("OidcToken: certs_url must be an https:// URL")
        self._certificates = Certificates(certs_url, clock)
        self._clock = clock

    def __repr__(self) -> str:
        return f"OidcToken(audience={self._audiences!r}, service_account={self._accounts!r})"

    def check(self, header: Header) -> None:
        try:
            claims = self._claims(_bearer(header, self._header(header)))
        except Refused:
            raise
        except Exception as error:  # whatever a stranger's token makes of the parser
            raise Refused(401, f"the token is not valid ({type(error).__name__})") from error
        if claims.get("iss") not in self._issuers:
            raise Refused(401, "the token has another issuer")
        if claims.get("email") not in self._accounts or claims.get("email_verified") is not True:
            raise Refused(403, "the token is of another account")

    def _header(self, header: Header) -> str:
        return "Authorization"

    def _claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token whose signature, expiry and audience are right."""
        from google.auth import jwt

        known = jwt.decode_header(token)  # type: ignore[no-untyped-call]
        # The verifier takes the algorithm from the token: of all of them only Google's.
        if known.get("alg") != "RS256" or not isinstance(known.get("kid"), str):
            raise Refused(401, "the token is not signed with RS256 and a key that it names")
        certificate = self._certificates.get(known["kid"])
        if certificate is None:
            raise Refused(401, "the token is signed with an unknown key")
        claims: Mapping[str, Any] = jwt.decode(  # type: ignore[no-untyped-call]
            token,
            certs=certificate,
            audience=list(self._audiences),
            clock_skew_in_seconds=_SKEW_SECONDS,
        )
        return claims


class CloudRunToken(OidcToken):
    """Accept these tokens on a Cloud Run service that only authenticated callers reach.

    Cloud Run then verifies the signature itself, and removes it. All else is verified here, and so
    are signatures that are there.

    **Only for a service that IAM guards** (`--no-allow-unauthenticated`): on a public one anybody
    can write a token without a signature. Outside of Cloud Run (`K_SERVICE`) such a token is
    refused. The arguments are those of `OidcToken`. Of a request with `X-Serverless-Authorization`
    Cloud Run verifies that header alone, so it alone counts.
    """

    def __repr__(self) -> str:
        return f"CloudRun{super().__repr__().removeprefix('Oidc')}"

    def _header(self, header: Header) -> str:
        return "Authorization" if header(_SERVERLESS) is None else _SERVERLESS

    def _claims(self, token: str) -> Mapping[str, Any]:
        if not token.endswith(_REMOVED_BY_CLOUD_RUN) or not on_cloud_run():
            return super()._claims(token)
        from google.auth import jwt

        claims: Mapping[str, Any] = jwt.decode(token, verify=False)  # type: ignore[no-untyped-call]
        if claims.get("aud") not in self._audiences:
            raise Refused(401, "the token is made out to another audience")
        if not claims["iat"] - _SKEW_SECONDS <= self._clock.wall() <= claims["exp"] + _SKEW_SECONDS:
            raise Refused(401, "the token has expired, or is not valid yet")
        return claims


class AppEngineHeader:
    """Accept requests of App Engine's task queues and cron, on App Engine.

    App Engine removes these headers from requests of others; elsewhere they count for nothing.
    """

    def __repr__(self) -> str:
        return "AppEngineHeader()"

    def check(self, header: Header) -> None:
        if not on_app_engine():
            raise Refused(403, "App Engine's headers prove nothing outside of App Engine")
        if not (header("X-AppEngine-QueueName") or header("X-AppEngine-Cron") == "true"):
            raise Refused(403, "the request is none of App Engine's queues or cron")


class SharedSecret:
    """Accept requests with a secret: `Authorization: Bearer SECRET`.

    Args:
        secrets: the secret; while it is changed, the new and the old one.

    Raises:
        ConfigurationError: there is none, or it is shorter than 16 characters or no ASCII text.
    """

    def __init__(self, *secrets: str) -> None:
        for each in secrets or ("",):
            plain = isinstance(each, str) and each.isascii() and each.isprintable()
            if not plain or " " in each or len(each) < _LEAST_SECRET:
                raise ConfigurationError(
                    f"SharedSecret: a secret has at least {_LEAST_SECRET} characters of ASCII, "
                    f"no space: python -c 'import secrets; print(secrets.token_urlsafe())'"
                )
        self._digests = [_digest(each) for each in secrets]

    def __repr__(self) -> str:
        return "SharedSecret(…)"

    def check(self, header: Header) -> None:
        """Return if the request has the secret. Takes the same time for any wrong one."""
        given = _digest(_bearer(header))
        # Not any(): the number of the secret would show in the time.
        if not sum(hmac.compare_digest(given, each) for each in self._digests):
            raise Refused(401, "the secret is wrong")


class Callers:
    """All who may call. ConfigurationError: there is none."""

    def __init__(self, callers: Iterable[Caller]) -> None:
        self._callers = tuple(callers)
        for each in self._callers:
            if isinstance(each, type) or not callable(getattr(each, "check", None)):
                raise ConfigurationError(
                    f"{each!r:.80} is no caller: it has no method check(header)"
                )
        if not self._callers:
            raise ConfigurationError(
                "nobody may call the outbox's endpoints. To fix it: name the service account in "
                "the URL of the queue (cloudtasks://…?target=…&service_account=…), or give "
                "OutboxEndpoints(outbox, callers=[SharedSecret(…)])"
            )

    def check(self, header: Header) -> None:
        """Return if any of them sent the request, or raise `Refused`: 503 if one could not tell."""
        refusals = []
        for each in self._callers:
            try:
                each.check(header)
                return
            except Refused as refused:
                refusals.append(refused)
        raise max(refusals, key=lambda refused: refused.status)


def _bearer(header: Header, name: str = "Authorization") -> str:
    scheme, _, token = (header(name) or "").partition(" ")
    token = token.strip(" ")
    if scheme.lower() != "bearer" or not token:
        raise Refused(401, "there is no bearer token")
    if len(token) > _MOST_TOKEN or not token.isascii():
        raise Refused(401, "the bearer token is malformed")
    return token


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _several(name: str, given: str | Iterable[str]) -> tuple[str, ...]:
    texts = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    if not texts or not all(isinstance(each, str) and each for each in texts):
        raise ConfigurationError(f"OidcToken: {name} must be a text, or several, none empty")
    return texts


# --- certificates -------------------------------------------------------------------------------


class Certificates:
    """The certificates at a URL, {key id: certificate in PEM}, as of Google. Thread-safe.

    For a token with an unknown key they are fetched again: it may be a new one. Not more often than
    once a minute: anybody can send tokens.
    """

    def __init__(self, url: str, clock: Clock, fetch: Callable[[str], bytes] | None = None) -> None:
        self._url = url
        self._clock = clock
        self._fetch = fetch or _fetch
        self._by_id: Mapping[str, bytes] = {}
        self._tried = self._fetched = -math.inf
        self._problem = ""  # with the last fetch
        self._reset()
        reset_in_child(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()

    def get(self, key_id: str) -> bytes | None:
        """Return a key's certificate in PEM; None if the issuer has no such key.

        `Refused`, with 503: the issuer does not answer.
        """
        certificate = self._by_id.get(key_id)
        if certificate is not None and self._since(self._fetched) < FRESH_SECONDS:
            return certificate  # without the lock: another thread may be waiting for the issuer
        with self._lock:
            wait = FRESH_SECONDS if key_id in self._by_id else AGAIN_SECONDS
            wait = AFTER_FAILURE_SECONDS if self._problem else wait
            if self._since(self._tried) >= wait:
                self._refresh()
            certificate = self._by_id.get(key_id)
            is_old = self._since(self._fetched) >= USABLE_SECONDS
            if self._problem and (certificate is None or is_old):
                text = f"the token cannot be verified: {self._url}: {self._problem}"
                raise Refused(503, text)
            return certificate

    def _since(self, moment: float) -> float:
        return self._clock.now() - moment

    def _refresh(self) -> None:
        try:
            document = _FETCHES.within(_TIMEOUT_SECONDS, self._fetch, self._url)
            self._by_id = _certificates(document)
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"[:200]
        else:
            self._problem, self._fetched = "", self._clock.now()
        self._tried = self._clock.now()


def _fetch(url: str) -> bytes:
    opener = urllib.request.build_opener(_AsTheyAre)
    with opener.open(url, timeout=_TIMEOUT_SECONDS) as answer:
        if answer.status != 200:
            raise ValueError(f"HTTP {answer.status}")
        document, ends = b"", time.monotonic() + _TIMEOUT_SECONDS
        while piece := answer.read1(_MOST_BYTES):
            document += piece
            if len(document) > _MOST_BYTES or time.monotonic() > ends:
                raise ValueError("the document is too long, or comes too slowly")
    return document


class _AsTheyAre(urllib.request.HTTPErrorProcessor):
    """Follows no redirections: one could lead from TLS to a place without it."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


def _certificates(document: bytes) -> dict[str, bytes]:
    found = json.loads(document)
    texts = found.items() if isinstance(found, dict) else ()
    by_id = {each: str(text).encode() for each, text in texts if str(text)[:5] == "-----"}
    if not by_id:
        raise ValueError("the document has no certificates")
    return by_id
