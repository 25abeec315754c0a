"""An issuer of OIDC tokens, with its certificates on a web server."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

AUDIENCE = "https://shop.example/userlock/jobs"
ACCOUNT = "jobs@shop.iam.gserviceaccount.com"
KEY_ID = "key-1"


@functools.cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    """Return the private key of a name; made once, as that takes long."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def coded(data: bytes | dict[str, Any]) -> str:
    raw = json.dumps(data).encode() if isinstance(data, dict) else data
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def claims(**changes: Any) -> dict[str, Any]:
    """Return the claims of a token as Google's are; None removes one."""
    now = int(time.time())
    found = {
        "iss": "https://accounts.google.com",
        "aud": AUDIENCE,
        "sub": "1",
        "email": ACCOUNT,
        "email_verified": True,
        "iat": now,
        "exp": now + 3600,
        **changes,
    }
    return {name: value for name, value in found.items() if value is not None}


def token(key: str = KEY_ID, header: dict[str, Any] | None = None, **changes: Any) -> str:
    """Return a signed token.

    Args:
        key: the name of the key that signs it.
        header: changes of its header; None removes an entry.
        changes: of its claims.
    """
    head = {"alg": "RS256", "typ": "JWT", "kid": key, **(header or {})}
    head = {name: value for name, value in head.items() if value is not None}
    signed = f"{coded(head)}.{coded(claims(**changes))}"
    if head.get("alg") == "none":
        return f"{signed}."
    if head.get("alg") == "HS256":
        # Signed with the public key as the secret: taken by a verifier that believes the header.
        signature = hmac.new(pem(rsa_key(key)), signed.encode(), hashlib.sha256).digest()
    else:
        signature = rsa_key(key).sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{signed}.{coded(signature)}"


class Issuer:
    """Its web server.

    Attributes:
        keys: the names of the published keys.
        fetched: how often they were fetched.
        status: of the answers.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self.keys = [KEY_ID]
        self.fetched = 0
        self.status = 200

    def certs_url(self) -> str:
        """Return the URL of the certificates."""
        return f"http://{self._place}/certificates"

    def document(self) -> dict[str, Any]:
        self.fetched += 1
        return {name: pem(rsa_key(name)).decode() for name in self.keys}


@contextmanager
def issuer() -> Iterator[Issuer]:
    """Provide an issuer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(found.document()).encode()
            self.send_response(found.status)
            self.send_header("Location", f"{found.certs_url()}?moved")  # counts for 302
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Issuer(f"127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
