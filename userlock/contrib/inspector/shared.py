"""Parts of the pages of all nouns: routes, errors, forms."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NoReturn

import flask

from userlock.admin.rendering import Facts, document
from userlock.errors import LockServiceUnavailable, LockTimeout
from userlock.lock.service import LockService
from userlock.ndb.client import DATASTORE_ERRORS
from userlock.words import legible

#: How much is shown of a foreign text, in characters.
SHOWN = 300

View = Callable[..., Any]
#: A page, with its status unless that is 200; or the facts of a JSON document.
Answer = str | tuple[str, int] | Facts


class Pages:
    """Pages about one noun. Each view runs in an ndb context, and its errors are answered."""

    name: str  # its address
    home: str  # the endpoint of its first page

    def __init__(
        self,
        service: Callable[[], LockService],
        context: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._service = service
        self._context = context

    def add_to(self, pages: flask.Blueprint) -> None:
        raise NotImplementedError

    def add(self, to: flask.Blueprint, method: str, rule: str, endpoint: str, view: View) -> None:
        to.add_url_rule(f"/{self.name}{rule}", endpoint, self.guarded(view), methods=[method])

    def render(self, template: str, **facts: Any) -> str:
        page = flask.render_template(f"userlock/{template}", **{"name": self.name, **facts})
        # A lock id may be any string, even one that UTF-8 cannot encode.
        return page.encode("utf-8", "backslashreplace").decode()

    def message(self, title: str, text: str, status: int = 200) -> tuple[str, int]:
        return self.render("message.html", title=title, text=text, back=self.home), status

    def refuse(self, title: str, text: str, status: int) -> NoReturn:
        flask.abort(flask.make_response(self.message(title, text, status)))

    def guarded(self, view: View) -> View:
        """Return a view whose errors are answered by a page."""

        def answered(**arguments: str) -> Any:
            try:
                with self._context():
                    answer = view(**arguments)
                return flask.jsonify(document(answer)) if isinstance(answer, dict) else answer
            except LockServiceUnavailable as error:
                return self.message("The lock store does not answer", error.reason, 503)
            except LockTimeout:
                text = "Another request has the lock of its owner. Try again in a moment."
                return self.message("The owner is busy", text, 503)
            except DATASTORE_ERRORS as error:
                text = legible(str(error).rpartition("last exception: ")[2], SHOWN)
                return self.message("Datastore does not answer", text, 503)

        return answered


def form(*names: str) -> list[str]:
    """Return fields of the form that was sent, empty where they are missing."""
    return [flask.request.form.get(name, "") for name in names]


def is_carried(text: str) -> bool:
    return text.isprintable() and "\ufffd" not in text
