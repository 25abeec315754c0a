"""Hooks: what answers requests before the app does. Web scopes know no more of it than this.

The engines of an outbox call such endpoints. None of the app's own hooks (log-ins,
protection against forged forms, redirections) is in their way.
"""

from __future__ import annotations

import http.client
import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

#: No hook takes a longer body.
MOST_BODY_BYTES = 4096

#: Returns a header of a request, or None.
Header = Callable[[str], str | None]
#: Opens the ndb context and the lock scope of a request.
Open = Callable[[str], AbstractContextManager[Any]]


class Answer(NamedTuple):
    """An answer to a request: the status, a JSON document, all headers."""

    status: int
    body: bytes
    headers: Mapping[str, str]


def status_line(status: int) -> str:
    """Return a status with its phrase, as WSGI has it."""
    return f"{status} {http.client.responses.get(status, 'Unknown')}"


class Hook(Protocol):
    """Answers some requests before the app; see `outbox_endpoints.OutboxEndpoints`."""

    @property
    def outbox(self) -> object:
        """Return what it serves, for the inspector's pages."""

    def runs_within(self, context: Callable[[], AbstractContextManager[Any]]) -> None:
        """Let its work run within a context of the framework's."""

    def has(self, path: str) -> bool:
        """Return whether it answers requests to an address."""

    def answer(
        self,
        method: str,
        path: str,
        header: Header,
        read: Callable[[int], bytes],
        open_scope: Open,
        *,
        shared: bool = False,
    ) -> Answer | None:
        """Answer a request; None if it is for the app.

        `path`: as the app routes by. `read`: reads at most so many bytes of the body. `open_scope`:
        opens the scope of the work. `shared`: whether the app answers other methods there.
        """


def hooks_of(*, outbox: object) -> tuple[Hook, ...]:
    """Return the hooks for the options of an integration.

    Modules are imported by name, when an app asks for them: an app without jobs loads none.
    """
    if outbox is None:
        return ()
    given = outbox if isinstance(outbox, list | tuple) else (outbox,)
    endpoints = importlib.import_module("userlock.contrib.outbox_endpoints")
    hooks: tuple[Hook, ...] = endpoints.endpoints_of(given)
    return hooks


def on_demand(module: str, **places: str) -> Callable[[str], Any]:
    """Return a module's `__getattr__`: it imports names from other modules when they are used."""

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(places[name]), name)

    return find
