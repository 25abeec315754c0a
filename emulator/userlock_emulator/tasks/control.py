"""The emulator's HTTP requests beside its RPCs; JSON in and out.

    GET  /                                   "Ok" while the emulator serves
    POST /reset                              delete all queues, tasks and names
         /faults, /faults/ID                 see `userlock_emulator.port.fault_requests`
    GET  /oauth2/v3/certs                    the keys of the OIDC tokens: a JSON Web Key Set
    GET  /oauth2/v1/certs                    the same keys as certificates
    GET  /.well-known/openid-configuration   where they are

The paths of the keys are Google's own. This module does no I/O.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from userlock_emulator.port.fault_requests import FaultRequests
from userlock_emulator.port.reply import RefusedError, Reply, in_json
from userlock_emulator.tasks.faults import Faults
from userlock_emulator.tasks.tokens import Signer

KEY_SET = "/oauth2/v3/certs"
CERTIFICATES = "/oauth2/v1/certs"
DISCOVERY = "/.well-known/openid-configuration"

_NAMES = (
    *("duplicate", "lose_answer", "late", "never", "early"),
    *("unavailable", "outage", "drop_reply"),
)
_TYPES: dict[str, tuple[type, ...]] = {
    "count": (int, type(None)),
    "queue": (str, type(None)),
    "rpc": (str, type(None)),
    "skip": (int,),
    "seconds": (int, float),
}


class Control:
    """Handler of these requests.

    Args:
        faults: the faults to list, add and remove.
        signer: holds the keys.
        host: the address of the emulator, "HOST:PORT".
        reset: deletes all data.
    """

    def __init__(
        self, faults: Faults, signer: Signer, host: str, reset: Callable[[], None]
    ) -> None:
        self._faults = FaultRequests(faults, _NAMES, _TYPES)
        self._signer = signer
        self._host = host
        self._reset = reset

    def answer(self, method: str, path: str, body: bytes) -> Reply:
        """Return the reply to a request."""
        path = path.partition("?")[0].rstrip("/")
        if not path and method == "GET":
            return Reply(HTTPStatus.OK, "text/plain", b"Ok\n")
        try:
            status, document = self._answer(method, path, body)
        except RefusedError as refused:
            status, document = refused.status, {"error": str(refused)}
        return in_json(status, document)

    def _answer(self, method: str, path: str, body: bytes) -> tuple[HTTPStatus, Any]:
        if path == "/reset":
            if method != "POST":
                raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "POST /reset")
            self._reset()
            return HTTPStatus.OK, {}
        documents = {
            KEY_SET: self._signer.key_set,
            CERTIFICATES: self._signer.certificates,
            DISCOVERY: self._discovery,
        }
        if path in documents:
            if method != "GET":
                raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"GET {path}")
            return HTTPStatus.OK, documents[path]()
        return self._faults.answer(method, path, body)

    def _discovery(self) -> dict[str, Any]:
        return {
            "issuer": self._signer.issuer,
            "jwks_uri": f"http://{self._host}{KEY_SET}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }
