"""The web endpoints of an outbox: engines deliver messages to one, a schedule calls the other.

    POST /userlock/jobs       the key of a job as the body: runs the owner's due jobs up to it
    POST /userlock/relay      asks the engines again for all jobs that are due; GET for App Engine's
                              cron

They are answered before the app (`hooks`). Only the outbox's callers are let through
(`userlock.outbox.authentication`). Others learn a status, and nothing else:

    405 method   401, 403 caller   503 the caller cannot be verified   413, 400 body

200 is the answer to all that needs no second delivery: the job has run, or failed, is gone, is not
due, or its owner is busy. 503: Datastore does not answer.
"""

from __future__ import annotations

import http
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from google.api_core.exceptions import GoogleAPIError

from userlock.arguments import check_kind
from userlock.contrib.request_scope import MOST_BODY_BYTES, Answer
from userlock.errors import CommitInDoubt, ConfigurationError
from userlock.outbox import Outbox
from userlock.outbox.authentication import AppEngineHeader, Caller, Callers, Refused
from userlock.outbox.rows import own_job_key

log = logging.getLogger(__name__)

#: One round of the relay, in seconds: below the time-outs of servers and schedules.
RELAY_SECONDS = 25.0
_HEADERS = {
    "Content-Type": "application/json",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


class OutboxEndpoints:
    """The web endpoints of an outbox, for `UserLock(app, outbox=…)`. Thread-safe.

    Args:
        outbox: the outbox.
        callers: who may call. By default those that the outbox's engines name: for
            `cloudtasks://…?target=…&service_account=…` tokens of that account, without a target
            App Engine's headers. Engines that run jobs in processes of their own name none: then
            there are no endpoints.
        url_prefix: the address of the endpoints.

    Attributes:
        outbox: the outbox.

    Raises:
        ConfigurationError: `callers` is empty.
        TypeError, ValueError: an option is none that can be used.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        callers: Iterable[Caller] | None = None,
        url_prefix: str = "/userlock",
    ) -> None:
        if not isinstance(outbox, Outbox):
            raise TypeError(f"outbox must be a userlock.outbox.Outbox, not {outbox!r:.80}")
        check_kind("url_prefix", url_prefix, str, "a str")
        check_kind("callers", callers, Iterable | None, "a list of callers")
        prefix = url_prefix.rstrip("/")
        if prefix and not prefix.startswith("/"):
            raise ValueError(f"url_prefix must begin with a slash, not {url_prefix!r:.80}")
        self.outbox = outbox
        self._jobs, self._relay = f"{prefix}/jobs", f"{prefix}/relay"
        #: For each address its methods, with those who may use them.
        self._methods: dict[str, dict[str, Callers]] = {}
        if callers is None:
            called = {getattr(each, "called_path", self._jobs) for each in outbox.engines}
            if called and not any(
                path.endswith(self._jobs) for path in called
            ):  # it may be mounted
                log.warning(
                    "the queue of outbox %s calls %s, and its endpoint is %s: unless a proxy "
                    "changes the path, its jobs do not run. To fix it: give the queue's URL "
                    "target=https://HOST%s, or change url_prefix=",
                    *(outbox.name, ", ".join(sorted(called)), self._jobs, self._jobs),
                )
            named = (getattr(engine, "caller", None) for engine in outbox.engines)
            callers = [each for each in named if each is not None]
            if not callers:
                return
        callers = tuple(callers)
        posts = {"POST": Callers(callers)}
        # App Engine's cron sends GET. Its header cannot be sent by a link or a form.
        crons = [each for each in callers if isinstance(each, AppEngineHeader)]
        gets = {"GET": Callers(crons)} if crons else {}
        self._methods = {self._jobs: posts, self._relay: {**posts, **gets}}

    def has(self, path: str) -> bool:
        return path in self._methods

    def answer(
        self,
        method: str,
        path: str,
        header: Callable[[str], str | None],
        read: Callable[[int], bytes],
        open_scope: Callable[[str], AbstractContextManager[Any]],
        shared: bool = False,
    ) -> Answer | None:
        """Answer a request; None if it is none for the endpoints. As `RequestScope.answer`."""
        methods = self._methods.get(path)
        if methods is None or (shared and method not in methods):
            return None
        try:
            if method not in methods:
                return _answer(405, {"Allow": ", ".join(methods)})
            methods[method].check(header)
            body = "" if path == self._relay else _body(header, read)
            with open_scope(f"POST {path}"):
                if path == self._relay:
                    relayed = self.outbox.relay(seconds=RELAY_SECONDS)
                    return _answer(200, **relayed._asdict())
                try:
                    own_job_key(body)
                except ValueError as error:
                    raise Refused(400, "the body is no key of a job") from error
                return _answer(200, outcome=self.outbox.run(body).value)
        except Refused as refused:
            # Anybody can cause refusals. 503 is the operator's trouble.
            level = logging.WARNING if refused.status == 503 else logging.INFO
            log.log(level, "%s refused with %d: %s", path, refused.status, refused.reason)
            named = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else {}
            return _answer(refused.status, named)
        except (GoogleAPIError, CommitInDoubt):
            log.exception("%s failed; it will be called again", path)
            return _answer(503)
        except Exception:
            log.exception("%s failed", path)
            return _answer(500)


def endpoints_of(outbox: Any) -> tuple[OutboxEndpoints, ...]:
    """Return the endpoints for the option `outbox` of an integration."""
    several = outbox if isinstance(outbox, list | tuple) else (outbox,)
    found = tuple(
        each if isinstance(each, OutboxEndpoints) else OutboxEndpoints(each) for each in several
    )
    paths = [path for each in found for path in each._methods]
    if len(paths) > len(set(paths)):
        raise ConfigurationError(
            "two outboxes have their endpoints at the same addresses. To fix it: give one "
            "OutboxEndpoints(outbox, url_prefix=…)"
        )
    return found


def _body(header: Callable[[str], str | None], read: Callable[[int], bytes]) -> str:
    """Return the body as text; the longest key of a row is shorter than allowed."""
    length = header("Content-Length") or "0"
    if not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise Refused(400, "the length of the body is malformed")
    if int(length) > MOST_BODY_BYTES:
        raise Refused(413, f"the body has {length} bytes")
    try:
        return read(int(length)).decode("ascii")
    except (OSError, ValueError) as error:
        raise Refused(400, f"the body cannot be read ({type(error).__name__})") from error


def _answer(status: int, headers: Mapping[str, str] | None = None, **facts: object) -> Answer:
    document = facts or {"title": http.HTTPStatus(status).phrase, "status": status}
    return Answer(status, json.dumps(document).encode(), {**_HEADERS, **(headers or {})})
