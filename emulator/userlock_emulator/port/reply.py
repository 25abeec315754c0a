"""Replies over HTTP/1.1."""

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, NamedTuple

from userlock_emulator.port.status import HTTP_STATUS, RpcError

JSON = "application/json"


class Reply(NamedTuple):
    """The reply to a request. A body in pieces is sent piece by piece.

    The further headers are ASCII, without line ends.
    """

    status: HTTPStatus
    content_type: str
    body: bytes | Iterator[bytes]
    headers: tuple[tuple[str, str], ...] = ()


class RefusedError(Exception):
    """A request beside the RPCs cannot be carried out."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def in_json(status: HTTPStatus, document: Any) -> Reply:
    """Return a reply with a JSON document."""
    return Reply(status, JSON, json.dumps(document).encode() + b"\n")


def rpc_error_in_json(error: RpcError) -> Reply:
    """Return the reply for an RPC that failed, in the form of Google's APIs."""
    status = HTTP_STATUS[error.code]
    described = {"code": status, "message": error.message, "status": error.code.name}
    return in_json(status, {"error": described})
