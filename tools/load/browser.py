"""One client of the site: keeps cookies and follows the redirect after a form."""

from __future__ import annotations

import contextlib
import http.client
import http.cookies
import time
from dataclasses import dataclass
from urllib.parse import urlencode

_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A response.

    Attributes:
        what: the request, with names in the path replaced, for the counts.
        status: the HTTP status; 0 without a response.
        seconds: from sending to the last byte.
        text: the body, or the error.
    """

    what: str
    status: int
    seconds: float
    text: str


class Browser:
    """A client. Not thread-safe: one for each thread."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._cookies: dict[str, str] = {}

    def get(self, what: str, path: str) -> Answer:
        """Fetch a page, counted as `what`."""
        answer, _ = self._send(f"GET {what}", "GET", path, None)
        return answer

    def post(self, what: str, path: str, **form: str | list[str]) -> list[Answer]:
        """Send a form, and fetch the page that it redirects to."""
        answer, location = self._send(f"POST {what}", "POST", path, form)
        if location is None:
            return [answer]
        after, _ = self._send("GET after a form", "GET", location, None)
        return [answer, after]

    def _send(
        self, what: str, method: str, path: str, form: dict[str, str | list[str]] | None
    ) -> tuple[Answer, str | None]:
        # A new connection for each request, so that none is ever sent twice.
        connection = http.client.HTTPConnection(self._host, timeout=_TIMEOUT_SECONDS)
        headers = {"Cookie": "; ".join(f"{key}={value}" for key, value in self._cookies.items())}
        body = None
        if form is not None:
            body = urlencode(form, doseq=True)
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        began = time.perf_counter()
        with contextlib.closing(connection):
            try:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                text = response.read().decode()
            except (OSError, http.client.HTTPException) as problem:
                return Answer(what, 0, time.perf_counter() - began, repr(problem)), None
        self._keep(response)
        answer = Answer(what, response.status, time.perf_counter() - began, text)
        return answer, response.getheader("Location")

    def _keep(self, response: http.client.HTTPResponse) -> None:
        for header in response.headers.get_all("Set-Cookie") or ():
            for key, morsel in http.cookies.SimpleCookie(header).items():
                self._cookies[key] = morsel.value
