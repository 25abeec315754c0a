"""Each page by its address, and the changes. This module does no I/O of its own.

    GET    /viewer/                  kinds
    GET    /viewer/kind              entities of one
    GET    /viewer/entity            one entity; /viewer/find leads there
    GET    /viewer/query             by form or GQL
    GET    /viewer/transactions      and their locks
    GET    /viewer/faults
    POST   /viewer/save, …           with `--edit` only

`/viewer/kinds.json`, or `?format=json`, is the same as JSON.
"""

import json
import logging
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from userlock_emulator.datastore.engine import Engine
from userlock_emulator.datastore.errors import DatastoreError, invalid
from userlock_emulator.datastore.faults import Faults
from userlock_emulator.datastore.key_text import path_text
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.datastore.viewer import edits, frame, places, trouble, trouble_views, views
from userlock_emulator.datastore.viewer.edits import Edits
from userlock_emulator.datastore.viewer.markup import Child, exact, join, tag
from userlock_emulator.datastore.viewer.paths import PREFIX
from userlock_emulator.datastore.viewer.places import Fields, address
from userlock_emulator.datastore.viewer.querying import Querying
from userlock_emulator.datastore.viewer.store import Document, Store
from userlock_emulator.port.reply import JSON, Reply
from userlock_emulator.port.status import HTTP_STATUS

_HEADERS = (
    ("Cache-Control", "no-store"),
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none';"
        " base-uri 'none'",
    ),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    # Without a referrer a browser would send `Origin: null` with a form.
    ("Referrer-Policy", "same-origin"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)
_DONE = {"saved": "Saved.", "deleted": "Deleted.", "reset": "All data is deleted.",
         "removed": "Removed.", "rolled-back": "Rolled back. Its locks are free."}  # fmt: skip
_ENDS_BY_JSON = ".json"

_log = logging.getLogger(__name__)


class _Page(NamedTuple):
    """A page: its title and content, and the document that the content shows."""

    title: str
    document: Document
    main: Child
    status: HTTPStatus = HTTPStatus.OK
    refresh: int = 0


class Viewer:
    """The handler of requests for pages.

    Args:
        project: the project to begin with.
        enforces: whether the emulator refuses a query without its index.
        edit: whether data may be changed here.
        reset: deletes all data.
    """

    def __init__(
        self,
        storage: Storage,
        engine: Engine,
        faults: Faults,
        *,
        project: str,
        enforces: bool,
        edit: bool,
        reset: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._faults = faults
        self._edit = edit
        self._store = Store(storage, project)
        explain = engine.run_query if enforces else None
        aggregate = engine.run_aggregation_query if enforces else None
        self._querying = Querying(storage, self._store, explain, aggregate)
        self._edits = Edits(engine, faults, reset)
        self._pages: dict[str, Callable[[Fields], _Page]] = {
            "kinds": self._kinds,
            "kind": self._kind,
            "entity": self._entity,
            "query": self._query,
            "transactions": self._transactions,
            "faults": self._planted,
        }
        self._forms: dict[str, Callable[[Fields], _Page]] = {
            "new": self._new,
            "edit": self._editing,
            "delete": self._deleting,
            "reset": self._resetting,
        }
        self._changes: dict[str, Callable[[Fields], str]] = {
            "save": self._save,
            "delete": self._delete,
            "roll-back": self._roll_back,
            "remove-fault": self._remove_fault,
            "reset": self._reset,
        }

    def answer(self, method: str, path: str, body: bytes) -> Reply:
        """Return the reply to a request whose path is of the viewer (`paths.is_viewer`)."""
        path, _, encoded = path.partition("?")
        name = path.removeprefix(PREFIX).strip("/")
        as_json = name.endswith(_ENDS_BY_JSON)
        name = name.removesuffix(_ENDS_BY_JSON) or "kinds"
        try:
            if method == "GET":
                if name == "style.css":
                    return _reply(HTTPStatus.OK, "text/css", _style())
                fields = places.fields_of(encoded)
                as_json = as_json or fields.pop("format", "") == "json"
                if name == "find":
                    return _see(self._find(fields))
                return self._shown(name, self._page(name, fields), encoded, as_json)
            if method == "POST":
                return self._changed(name, places.fields_of(_text(body)))
            refusal = _refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"There is no {method} here.")
        except DatastoreError as error:
            refusal = _refusal(HTTP_STATUS[error.code], error.message)
        except Exception as error:
            _log.exception("%s %s failed", method, path)
            refusal = _refusal(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"The page cannot be shown: {error!r}"
            )
        return self._shown(name, refusal, "", as_json)

    def _page(self, name: str, fields: Fields) -> _Page:
        if name in self._forms and not self._edit:
            return _read_only()
        page = self._pages.get(name) or self._forms.get(name)
        if page is None:
            return _refusal(HTTPStatus.NOT_FOUND, "There is no such page.")
        return page(fields)

    def _shown(self, name: str, page: _Page, encoded: str, as_json: bool) -> Reply:
        if as_json:
            body = json.dumps(page.document, indent=2).encode() + b"\n"
            return _reply(page.status, JSON, body)
        known = name in self._pages or name in self._forms
        beside = f"{PREFIX}/{name}{_ENDS_BY_JSON}{'?' if encoded else ''}{encoded}"
        fields = places.fields_of(encoded)
        done = _DONE.get(fields.get("done", ""))
        main = join(tag("p", done, class_="note", role="status") if done else None, page.main)
        html = frame.page(
            name,
            page.title,
            main,
            json=beside if known else "",
            edit=self._edit,
            refresh=page.refresh,
        )
        return _reply(page.status, "text/html; charset=utf-8", html)

    # --- pages --------------------------------------------------------------------------------

    def _kinds(self, fields: Fields) -> _Page:
        document = self._store.kinds(fields)
        return _Page("Kinds", document, views.kinds(document, fields, self._edit))

    def _kind(self, fields: Fields) -> _Page:
        partition = places.partition_of(fields, self._store.project)
        document = self._store.entities(partition, fields.get("kind", ""), fields.get("cursor", ""))
        title = f"Kind {document['kind']}"
        return _Page(title, document, views.kind(document, fields, self._edit))

    def _entity(self, fields: Fields) -> _Page:
        key = places.key_of(fields.get("key", ""))
        document = self._store.entity(key)
        status = HTTPStatus.OK if document["found"] else HTTPStatus.NOT_FOUND
        main = views.entity(document, self._edit)
        return _Page(path_text(key), document, main, status)

    def _find(self, fields: Fields) -> str:
        partition = places.partition_of(fields, self._store.project)
        key = places.find(fields.get("text", ""), partition)
        return address("entity", key=places.token(key))

    def _query(self, fields: Fields) -> _Page:
        partition = places.partition_of(fields, self._store.project)
        document = self._querying.run(fields, partition)
        shown = {**fields, "project": partition.project}
        status = HTTPStatus.BAD_REQUEST if "error" in document else HTTPStatus.OK
        return _Page("Query", document, views.query(document, shown), status)

    def _transactions(self, fields: Fields) -> _Page:
        document = trouble.transactions(self._engine.activity())
        refresh = 5 if "refresh" in fields else 0
        main = trouble_views.transactions(document, self._edit, bool(refresh))
        return _Page("Transactions", document, main, refresh=refresh)

    def _planted(self, fields: Fields) -> _Page:
        document = {"faults": [fault.described() for fault in self._faults.planted]}
        return _Page("Faults", document, trouble_views.faults(document, self._edit))

    # --- forms, with `--edit` -----------------------------------------------------------------

    def _new(self, fields: Fields) -> _Page:
        partition = places.partition_of(fields, self._store.project)
        text = edits.text_of_new(partition, fields.get("kind", ""))
        main = _form(text, places.fields_of_partition(partition))
        return _Page("New entity", json.loads(text), main)

    def _editing(self, fields: Fields) -> _Page:
        document = self._found(fields)
        hidden = {"key": fields["key"], "version": document["version"]}
        main = _form(edits.text_of(document), hidden)
        return _Page(f"Edit {self._title(fields)}", document, main)

    def _deleting(self, fields: Fields) -> _Page:
        document = self._store.entity(places.key_of(fields.get("key", "")))
        if not document["found"]:
            return self._entity(fields)
        button = frame.post(
            "delete", "Delete", danger=True, key=fields["key"], version=document["version"]
        )
        cancel = tag("a", "Cancel", href=address("entity", key=fields["key"]))
        main = tag("div", button, cancel, class_="actions")
        return _Page(f"Delete {self._title(fields)}?", document, main)

    def _resetting(self, fields: Fields) -> _Page:
        main = join(
            tag("p", "This deletes all entities of all projects, ends all transactions and removes"
                " all faults."),
            tag(
                "div",
                frame.post("reset", "Delete everything", danger=True),
                tag("a", "Cancel", href=address("faults")),
                class_="actions",
            ),
        )  # fmt: skip
        return _Page("Reset the emulator?", {}, main)

    def _found(self, fields: Fields) -> Document:
        document = self._store.entity(places.key_of(fields.get("key", "")))
        if "properties" not in document:
            raise invalid(document.get("error", "There is no such entity."))
        return document

    def _title(self, fields: Fields) -> str:
        return path_text(places.key_of(fields["key"]))

    # --- changes, with `--edit` ---------------------------------------------------------------

    def _changed(self, name: str, form: Fields) -> Reply:
        change = self._changes.get(name)
        if change is None:
            page = _refusal(HTTPStatus.NOT_FOUND, "There is no such form.")
            return self._shown(name, page, "", as_json=False)
        if not self._edit:
            return self._shown(name, _read_only(), "", as_json=False)
        try:
            return _see(change(form))
        except DatastoreError as error:
            main: Child = frame.note(error.message, error=True)
            if name == "save":
                hidden = {key: value for key, value in form.items() if key != "entity"}
                main = join(main, _form(form.get("entity", ""), hidden))
            page = _Page("Not changed", _error(error.message), main, HTTP_STATUS[error.code])
            return self._shown(name, page, "", as_json=False)

    def _save(self, form: Fields) -> str:
        return address("entity", key=places.token(self._edits.save(form)), done="saved")

    def _delete(self, form: Fields) -> str:
        key = self._edits.delete(form)
        place = places.fields_of_partition(places.partition_of_key(key))
        return address("kind", place, kind=key.path[-1].kind, done="deleted")

    def _roll_back(self, form: Fields) -> str:
        self._edits.roll_back(form)
        return address("transactions", done="rolled-back")

    def _remove_fault(self, form: Fields) -> str:
        self._edits.remove_fault(form)
        return address("faults", done="removed")

    def _reset(self, form: Fields) -> str:
        self._edits.reset(form)
        return address("kinds", done="reset")


def _form(text: str, hidden: Fields) -> Child:
    lines = min(max(text.count("\n") + 2, 12), 40)
    return tag(
        "form",
        [tag("input", type="hidden", name=name, value=value) for name, value in hidden.items()],
        tag("label", "Entity, in the JSON of the REST API", for_="f-entity"),
        tag("textarea", exact(text), id="f-entity", name="entity", rows=lines, spellcheck="false"),
        tag("div", tag("button", "Save", class_="strong"), class_="actions"),
        method="post",
        action=f"{PREFIX}/save",
    )


def _refusal(status: HTTPStatus, message: str) -> _Page:
    return _Page(status.phrase, _error(message), frame.note(message, error=True), status)


def _read_only() -> _Page:
    return _refusal(
        HTTPStatus.FORBIDDEN,
        "Nothing can be changed here. To fix it: start the emulator with --edit.",
    )


def _error(message: str) -> Document:
    return {"error": message}


def _text(body: bytes) -> str:
    try:
        return body.decode("ascii")
    except UnicodeDecodeError:
        raise invalid("This is not a form.") from None


def _see(location: str) -> Reply:
    """Return the redirection to a page, after which a reload changes nothing again."""
    headers = (*_HEADERS, ("Location", location))
    return Reply(HTTPStatus.SEE_OTHER, "text/plain", b"", headers)


def _reply(status: HTTPStatus, content_type: str, body: bytes) -> Reply:
    return Reply(status, content_type, body, _HEADERS)


def _style() -> bytes:
    return Path(__file__).with_name("style.css").read_bytes()
