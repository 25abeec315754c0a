"""OpenID Connect tokens, signed here as Google signs its own.

The claims are those of Google's tokens for a service account, and so is the issuer by default. A
receiver verifies one by the emulator's keys: as a JSON Web Key Set, or as certificates in the older
form that `google.oauth2.id_token` reads without further packages.

Sources: RFC 7515, 7517, 7518 and 7519; Google's page "OpenID Connect" for claims and key URLs.
"""

import base64
import datetime
import hashlib
import json
import threading
import time
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from userlock_emulator.tasks.storage import Storage

GOOGLE = "https://accounts.google.com"
_LIFE_SECONDS = 3600
_SETTING = "signing_key"


class Signer:
    """The signing key of an emulator. Thread-safe.

    It is made when it is first needed, and stored with the tasks: tokens stay valid after a
    restart.
    """

    def __init__(self, storage: Storage, issuer: str) -> None:
        self._storage = storage
        self.issuer = issuer
        self._lock = threading.Lock()
        self._loaded: tuple[rsa.RSAPrivateKey, str] | None = None

    def _key(self) -> tuple[rsa.RSAPrivateKey, str]:
        """Return the key and its id."""
        with self._lock:
            if self._loaded is None:
                key = _load(self._storage)
                public = key.public_key().public_bytes(
                    serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
                )
                self._loaded = key, hashlib.sha256(public).hexdigest()[:40]
            return self._loaded

    def token(self, email: str, audience: str) -> str:
        """Return a token for an hour.

        The time of day is the receiver's, even if the emulator's clock is moved by hand.
        """
        key, key_id = self._key()
        now = int(time.time())
        # Google's ids of service accounts are numbers of 21 digits.
        subject = str(10**20 + int(hashlib.sha256(email.encode()).hexdigest()[:16], 16))
        claims = {
            "iss": self.issuer,
            "aud": audience,
            "azp": subject,
            "sub": subject,
            "email": email,
            "email_verified": True,
            "iat": now,
            "exp": now + _LIFE_SECONDS,
        }
        head = {"alg": "RS256", "kid": key_id, "typ": "JWT"}
        signed = f"{_coded(head)}.{_coded(claims)}"
        signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64(signature)}"

    def key_set(self) -> dict[str, Any]:
        """Return the public key as a JSON Web Key Set."""
        key, key_id = self._key()
        numbers = key.public_key().public_numbers()
        return {
            "keys": [
                {
                    "kty": "RSA",
                    "use": "sig",
                    "alg": "RS256",
                    "kid": key_id,
                    "n": _base64(_big(numbers.n)),
                    "e": _base64(_big(numbers.e)),
                }
            ]
        }

    def certificates(self) -> dict[str, str]:
        """Return the public key as a certificate, by its id."""
        key, key_id = self._key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cloud-tasks-emulator")])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=365))
            .sign(key, hashes.SHA256())
        )
        return {key_id: certificate.public_bytes(serialization.Encoding.PEM).decode()}


def _load(storage: Storage) -> rsa.RSAPrivateKey:
    with storage.change() as tables:
        stored = tables.setting(_SETTING)
        if stored is None:
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            stored = key.private_bytes(
                serialization.Encoding.DER,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            tables.set(_SETTING, stored)
    loaded = serialization.load_der_private_key(stored, None)
    assert isinstance(loaded, rsa.RSAPrivateKey)
    return loaded


def _coded(document: dict[str, Any]) -> str:
    return _base64(json.dumps(document, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _big(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")
