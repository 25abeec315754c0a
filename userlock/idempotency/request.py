"""A request with an idempotency key: its parts, and what they must be."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from userlock.errors import IdempotencyKeyRefused, IdempotencyKeyReused, NotStorable
from userlock.json_values import check, written
from userlock.lock.lease import check_lock_id

_E = TypeVar("_E", bound=Exception)
_KEY = re.compile(r"[!-~]{1,255}")


class Request(NamedTuple):
    """A request with an idempotency key.

    Attributes:
        user_id: the owner of the key, a lock id.
        key: the idempotency key.
        flow: the name of the function that serves it.
        params: its parameters, a JSON value.
        method, path: of the HTTP request; empty for other calls.
        digest: of parameters that `params` does not have; empty: of `params`.
        arguments: of a view, from its route: a JSON object.
        completable: whether the parameters are stored, so that the server can complete it.
        namespace: of a request that was read from its row.
    """

    user_id: str
    key: str
    flow: str
    params: Any = None
    method: str = ""
    path: str = ""
    digest: str = ""
    arguments: Any = None
    completable: bool = True
    namespace: str = ""

    def error(self, kind: Callable[..., _E], text: str, **facts: Any) -> _E:
        """Return an error of the request."""
        return kind(text, user_id=self.user_id, key=self.key, **facts)


def checked(request: Request) -> Request:
    """Return a request with its digest.

    Raises:
        IdempotencyKeyRefused: the key is malformed.
        NotStorable: the parameters are no JSON.
    """
    request = request._replace(user_id=check_lock_id(request.user_id))
    key = request.key
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise IdempotencyKeyRefused(
            "an idempotency key has 1 to 255 visible ASCII characters, for example those of a "
            "random UUID",
            user_id=request.user_id,
            key=str(key)[:255],
        )
    digest = request.digest
    if request.completable or not digest:  # they are stored, or count by their value
        try:
            check([request.params, request.arguments], "the parameters")
        except ValueError as error:
            text = f"the parameters of {request.flow} cannot be stored: {error}"
            raise request.error(NotStorable, text) from None
    if not digest:
        digest = hashlib.sha256(written(request.params, sort_keys=True)).hexdigest()
    return request._replace(digest=digest)


def check_same(fields: Mapping[str, Any], request: Request) -> None:
    """Refuse a request if the row of its key, with these fields, is another one's.

    Raises:
        IdempotencyKeyReused: it is.
    """
    sent = (request.flow, request.method, request.path, request.digest)
    if tuple(map(fields.get, ("flow", "method", "path", "digest"))) != sent:
        raise request.error(
            IdempotencyKeyReused,
            "the idempotency key belongs to a request with other parameters. To fix it: send "
            "each request with a key of its own",
        )


def stored_parameters(request: Request) -> str | None:
    """Return the parameters as they are stored; None if they are not."""
    if not request.completable:
        return None
    return written([request.params, request.arguments]).decode()


def request_of(row: Any) -> Request:
    """Return the request of a row whose parameters are stored.

    Raises:
        TypeError, ValueError: the row is malformed.
    """
    params, arguments = json.loads(row.params)
    if not isinstance(row.idempotency_key, str):
        raise TypeError("it has no idempotency key")
    return Request(
        check_lock_id(row.user),
        row.idempotency_key,
        row.flow,
        params,
        row.method,
        row.path,
        row.digest,
        arguments,
        namespace=row.key.namespace() or "",
    )
