"""HTTP requests with an idempotency key, for the web integrations.

The key is in the header `Idempotency-Key`, plain or in quotes (a string of RFC 9651,
as the IETF's draft has it). Two requests are the same if their method, path, query
and parameters are: of JSON documents and forms their values count, not their bytes.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

from userlock.errors import ConfigurationError, NotStorable
from userlock.idempotency import Answer, Flow
from userlock.json_values import check, written

HEADER = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
METHODS = ("POST", "PATCH")
#: The longest parameters that are stored, so that the server can complete the request.
_MOST_STORED_BYTES = 200_000

OnBusy = Literal["wait", "refuse"]


class Parameters(NamedTuple):
    """The parameters of a request.

    Attributes:
        value: as the function gets them, a JSON value; None if there are none that can be stored.
        digest: of all of them.
    """

    value: Any
    digest: str


def parameters_of(
    query: bytes,
    content_type: str,
    body: bytes,
    *,
    form: Iterable[tuple[str, str]] = (),
    files: Iterable[tuple[str, str, bytes]] = (),
) -> Parameters:
    """Return the parameters of a request.

    Args:
        query: the query string.
        content_type: its media type, without parameters.
        body: the body; empty for forms.
        form: the fields of a form.
        files: the files of a form: field, name and content.
    """
    value: Any = None
    if content_type == "application/json" or content_type.endswith("+json"):
        value = _json(body)
    fields = [list(each) for each in form]
    stored_files = [
        [name, file, hashlib.sha256(content).hexdigest()] for name, file, content in files
    ]
    if fields and not stored_files:
        value = {}
        for name, text in fields:
            value.setdefault(name, []).append(text)
    counted = [query.decode("latin-1"), fields, stored_files]
    if value is None or fields:
        counted.append(body.hex())
    else:
        counted.append(value)
    digest = hashlib.sha256(written(counted, sort_keys=True)).hexdigest()
    if value is not None and len(written(value)) > _MOST_STORED_BYTES:
        value = None
    return Parameters(value, digest)


def _json(body: bytes) -> Any:
    """Return a JSON document, or None if it is none: then its bytes count."""
    try:
        value = json.loads(body)
        check(value, "it")
    except (ValueError, RecursionError):
        return None
    return value


def key_of(header: str | None) -> str:
    """Return the key in the header; empty if it is missing."""
    key = (header or "").strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    return key


def check_options(on_busy: str, methods: Iterable[str]) -> tuple[str, ...]:
    """Return the methods, checked with the other option.

    Raises:
        ValueError: an option has another value.
    """
    if on_busy not in ("wait", "refuse"):
        raise ValueError(f"on_busy is 'wait' or 'refuse', not {on_busy!r:.80}")
    if isinstance(methods, str):
        raise TypeError("methods must be a list of methods, not one string")
    found = tuple(methods)
    wrong = [each for each in found if not isinstance(each, str) or not each.isupper()]
    if wrong or not found:
        raise ValueError(f"methods are names like POST, not {found!r:.80}")
    return found


def check_view(name: str, view: Callable[..., Any]) -> None:
    """Refuse a view whose answers cannot be stored.

    Raises:
        ConfigurationError: it is a coroutine or a generator.
    """
    if inspect.iscoroutinefunction(view) or inspect.isgeneratorfunction(view):
        raise ConfigurationError(
            f"flow {name}: the answer of a coroutine or generator cannot be stored. To fix it: "
            f"make it a plain function"
        )


def check_method(name: str, method: str | None, methods: Sequence[str]) -> None:
    """Refuse a request that needs no key: its view would get no flow.

    Raises:
        ConfigurationError: the method is none of these.
    """
    if method not in methods:
        raise ConfigurationError(
            f"flow {name} is for {', '.join(methods)}, not for {method}. To fix it: give the route "
            f"a view of its own, or name methods="
        )


def refuse_stream(flow: Flow) -> NoReturn:
    """Refuse an answer that is a stream.

    Raises:
        NotStorable: always.
    """
    raise NotStorable(
        "the answer is a stream, which cannot be given again. To fix it: return all of it, or a "
        "link to it",
        user_id=flow.user_id,
        key=flow.key,
    )


def headers_of(answer: Answer) -> list[tuple[str, str]]:
    """Return the headers of an answer, and whether it was given before."""
    return [*answer.headers, *([(REPLAYED, "true")] if answer.replayed else [])]
