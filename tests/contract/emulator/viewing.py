"""A client of the viewer's pages, and a reader of their HTML."""

from __future__ import annotations

import http.client
import json
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import urlencode

VIEWER = "/viewer/"
_VOID = {"br", "input", "link", "meta"}


class Answer(NamedTuple):
    """The reply to a request."""

    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def page(self) -> Html:
        return Html(self.text)

    @property
    def document(self) -> Any:
        return json.loads(self.text)


class Html(HTMLParser):
    """A page as a browser reads it: elements with their attributes, and the text.

    It fails for elements that are not closed in order, as those of an injected fragment.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.typed = ""  # in text areas
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "textarea":
            self.typed += data
        else:
            self.text += data

    def links(self, begin: str) -> list[str]:
        """Return the addresses of links that begin so."""
        found = [attributes.get("href") or "" for tag, attributes in self.elements if tag == "a"]
        return [href for href in found if href.startswith(VIEWER + begin)]

    def forms(self) -> set[str]:
        """Return the addresses to which the page posts forms."""
        return {
            attributes["action"] or ""
            for tag, attributes in self.elements
            if tag == "form" and attributes.get("method") == "post"
        }

    def hidden(self) -> dict[str, str]:
        """Return the hidden fields of all forms."""
        return {
            attributes["name"] or "": attributes["value"] or ""
            for tag, attributes in self.elements
            if tag == "input" and attributes.get("type") == "hidden"
        }


class Browser:
    """Requests as a browser sends them."""

    def __init__(self, host: str) -> None:
        self.host = host

    def get(self, page: str = "", /, **fields: str) -> Answer:
        return self.get_with({}, page, **fields)

    def get_with(self, headers: dict[str, str], page: str = "", /, **fields: str) -> Answer:
        path = page if page.startswith("/") else VIEWER + page
        if fields:
            path += f"?{urlencode(fields)}"
        return self.send("GET", path, None, headers)

    def post(self, form: str, /, **fields: str) -> Answer:
        return self.post_with({"Origin": f"http://{self.host}"}, form, **fields)

    def post_with(self, headers: dict[str, str], form: str, /, **fields: str) -> Answer:
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.send("POST", VIEWER + form, urlencode(fields), {**kind, **headers})

    def send(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection(self.host, timeout=30)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read().decode())
        finally:
            connection.close()
