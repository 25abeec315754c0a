"""HTTP requests with an idempotency key, for the web integrations.

The key is in the header `Idempotency-Key`, plain or in quotes (a string of RFC 9651,
as the IETF's draft has it). Two requests are the same if their method, path, query
and parameters are: of JSON documents and forms their values count, not their bytes.
Of a longer JSON document its bytes do, as values cost some 40 times the time.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import IO, Any, Generic, Literal, NamedTuple, NoReturn, TypedDict, TypeVar

from userlock.arguments import check_bool, check_count, check_kind, check_texts
from userlock.contrib.problems import problem_of
from userlock.errors import (
    ConfigurationError,
    NotSignedIn,
    NotStorable,
    NotUnique,
    RequestIncomplete,
    RequestTooLarge,
)
from userlock.idempotency import Answer, Flow, Flows, Request
from userlock.idempotency.answers import kept
from userlock.idempotency.flows import check_function, check_keep_hours, name_of_function
from userlock.idempotency.rows import MOST_PARAMS_BYTES
from userlock.json_values import check, written
from userlock.lock.lease import check_lock_id, check_wait_timeout

HEADER = "Idempotency-Key"
#: The media types of forms.
FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
#: A header of bodies without a length, in a WSGI environment.
CHUNKED = "HTTP_TRANSFER_ENCODING"
#: The longest body, unless a view takes more. A body that is no form is in memory.
MOST_BYTES = 10_000_000
#: How much of a file is in memory.
PIECE_BYTES = 65_536

OnBusy = Literal["wait", "refuse"]
_R = TypeVar("_R")


class Parameters(NamedTuple):
    """The parameters of a request."""

    #: As the function gets them; None if they are no JSON value, or a long one.
    value: Any
    digest: str
    #: Whether `value` has all that is in the body.
    storable: bool


def parameters_of(
    query: bytes,
    content_type: str,
    body: bytes,
    *,
    form: Iterable[tuple[str, str]] = (),
    files: Iterable[tuple[str, str, str]] = (),
) -> Parameters:
    """Return the parameters of a request.

    `content_type`: without parameters. `body`: empty for forms. `files`: of a form: field, name and
    the digest of the content.
    """
    value: Any = None
    is_json = content_type == "application/json" or content_type.endswith("+json")
    if is_json and len(body) <= MOST_PARAMS_BYTES:
        value = _json(body)
    fields, sent_files = sorted(form, key=operator.itemgetter(0)), list(files)
    if fields and not sent_files and len(written(fields)) <= MOST_PARAMS_BYTES:
        value = {}
        for name, text in fields:
            value.setdefault(name, []).append(text)
    counted: list[Any] = [query.decode("latin-1"), fields, sent_files]
    if value is None or fields:
        counted.append({"type": content_type, "bytes": hashlib.sha256(body).hexdigest()})
    else:
        counted.append({"json": value})
    digest = hashlib.sha256(written(counted, sort_keys=True)).hexdigest()
    return Parameters(value, digest, value is not None or not (body or fields or sent_files))


def digest_of(file: IO[bytes]) -> str:
    """Return the digest of an uploaded file, of which something may have been read."""
    digest = hashlib.sha256()
    file.seek(0)
    while piece := file.read(PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def rewind_files(files: Iterable[Any]) -> None:
    """Let the next reader have files from their beginning, unless the view has closed them."""
    for file in files:
        if not file.closed:
            file.seek(0)


def check_length(length: int | str | None, most: int) -> None:
    """Refuse a body that is too long by its header Content-Length, before it is read.

    Or a header that is no number: frameworks would take the body for empty.
    """
    if isinstance(length, str):
        if length and not (length.isascii() and length.isdigit()):
            raise RequestIncomplete("the Content-Length is no number")
        if len(length) > 18:  # int() takes no thousands of digits, be they zeros
            raise RequestTooLarge(most)
        length = int(length or 0)
    if length is not None and length > most:
        raise RequestTooLarge(most)


def check_environ(environ: Mapping[str, Any], most: int) -> int | None:
    """Return the length of a body in a WSGI environment; None if it has none.

    Refuse it as `check_length` does; or if it is in chunks that the server leaves to the app: it
    would be taken for an empty one.
    """
    length = environ.get("CONTENT_LENGTH") or None
    check_length(length, most)
    if length is None and CHUNKED in environ and not environ.get("wsgi.input_terminated"):
        raise RequestIncomplete("the body has no Content-Length")
    return None if length is None else int(length)


def _json(body: bytes) -> Any:
    """Return a JSON document, or None if it is none: then its bytes count."""
    try:
        value = json.loads(body)
        check(value, "it")
    except (ValueError, RecursionError):
        return None
    return value


def owner_of(user_id: str | int | None) -> str:
    """Return the owner of a key, as `user=` has returned it."""
    if user_id is None or user_id == "":  # as the names and ids of anonymous users
        raise NotSignedIn
    return check_lock_id(user_id)


def check_askers(user: object, key: object) -> None:
    """Refuse texts and the like, which would fail in each request."""
    check_kind("user", user, Callable, "a function")
    check_kind("key", key, Callable | None, "a function")


def _key(given: str | None) -> str:
    if given is not None and not isinstance(given, str):
        raise ConfigurationError(f"key= returned {given!r:.80}. To fix it: return a text or None")
    key = (given or "").strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    return key


class ViewOptions(TypedDict, total=False):
    """The options of `Flows.idempotent` that all integrations share."""

    on_busy: OnBusy
    wait_timeout: float | None
    keep_hours: float | None
    methods: Iterable[str]
    completable: bool
    name: str | None
    max_bytes: int


class IdempotentView(Generic[_R]):
    """A view that runs once for each key.

    `parts_of`: returns the status, the headers and the body of a framework's response. `made_of`:
    returns a response of these.
    """

    def __init__(
        self,
        view: Callable[..., Any],
        parts_of: Callable[[_R], tuple[int, Iterable[tuple[str, str]], bytes]],
        made_of: Callable[[int, list[tuple[str, str]], bytes], _R],
        *,
        on_busy: OnBusy = "wait",
        wait_timeout: float | None = None,
        keep_hours: float | None = None,
        methods: Iterable[str] = ("POST", "PATCH"),
        completable: bool = False,
        name: str | None = None,
        max_bytes: int = MOST_BYTES,
    ) -> None:
        if on_busy not in ("wait", "refuse"):
            raise ValueError(f"on_busy is 'wait' or 'refuse', not {on_busy!r:.80}")
        if keep_hours is not None:
            check_keep_hours(keep_hours)
        if wait_timeout is not None:
            check_wait_timeout(wait_timeout)
        self.max_bytes = check_count("max_bytes", max_bytes, least=0)
        self.methods = check_texts("methods", methods, "names")
        if not self.methods or not all(map(str.isupper, self.methods)):
            raise ValueError(f"methods are names like POST, not {self.methods!r:.80}")
        self.name = name or name_of_function(view)
        self.completable = check_bool("completable", completable)
        self._keep_hours = keep_hours
        self._of_run: Any = {"wait_timeout": wait_timeout, "refuse": on_busy == "refuse"}
        self._parts_of, self._made_of = parts_of, made_of
        check_function(self.name, view)

    def run(
        self,
        flows: Flows,
        request: Request,
        work: Callable[[Flow], _R | None],
        rewind: Callable[[], object],
    ) -> _R:
        """Run it once for a request. Return its response, or the one that is stored.

        `work`: returns the response of the view; None if it has answered in `last()`. Each run of
        it has the arguments as they were sent. `rewind`: as `Flow.rewind`.
        """
        made: _R | None = None

        def run(flow: Flow) -> Answer | None:
            nonlocal made
            flow.rewind = rewind
            rewind()
            made, answer = self._run(flow, work)
            return answer

        answer = flows.run(request, run, **self._of_run, keep_hours=self._keep_hours)
        if made is not None and not answer.replayed:
            return made  # with all of its headers
        replayed = [("Idempotent-Replayed", "true")] if answer.replayed else []
        return self._made_of(answer.status, [*answer.headers, *replayed], answer.body)

    def register(self, flows: Flows, work: Callable[[Flow], _R | None]) -> None:
        """Let the server complete requests, if they are completable."""
        flows.note(self.name)
        if self.completable:
            flows.register(self.name, lambda flow: self._run(flow, work)[1], self._keep_hours)

    def _run(
        self, flow: Flow, work: Callable[[Flow], _R | None]
    ) -> tuple[_R | None, Answer | None]:
        """Return the response of the view, and the answer that it is; None: it has answered.

        `NotUnique` is an answer, too: its client sends another value, which is another request.
        """
        try:
            response = work(flow)
        except NotUnique as error:
            if flow.answer is not None:
                raise
            problem = problem_of(error)
            response = self._made_of(problem.status, [*problem.headers.items()], problem.body)
        if response is None:
            return None, None
        status, headers, body = self._parts_of(response)
        return response, Answer(status, kept(headers), body)

    def request(
        self,
        user_id: str,
        key: str | None,
        method: str,
        path: str,
        sent: Parameters,
        arguments: dict[str, Any],
    ) -> Request:
        """Return a request. `key`: as the header or `key=` has it; None if it is missing."""
        return Request(
            user_id,
            _key(key),
            self.name,
            sent.value,
            method,
            path,
            sent.digest,
            arguments if self.completable else None,
            completable=self.completable and sent.storable,
        )

    def check(self, method: str | None, others: Collection[Any] = ()) -> None:
        """Refuse a request that needs no key, as the view would get no flow.

        Or one that the server could not complete. `others`: the view's arguments that are not the
        route's by name; it would get their defaults, or none.
        """
        if method not in self.methods:
            raise ConfigurationError(
                f"flow {self.name} is for {', '.join(self.methods)}, not for {method}. To fix it: "
                f"give the route a view of its own, or name methods="
            )
        if self.completable and others:
            raise ConfigurationError(
                f"flow {self.name} is completable, and its view has other arguments than those of "
                f"its route by name: {', '.join(map(repr, others)):.200}. To fix it: make it a "
                f"function of its flow and these; it reads the rest in flow.params"
            )


def refuse_stream(flow: Flow) -> NoReturn:
    raise NotStorable(
        "the answer is a stream, which cannot be given again. To fix it: return all of it, or a "
        "link to it",
        user_id=flow.user_id,
        key=flow.key,
    )
