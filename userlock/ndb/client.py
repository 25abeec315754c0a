"""The ndb client of a process: one that was made before a fork does not work after it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from google.api_core.exceptions import GoogleAPIError
from google.auth.exceptions import GoogleAuthError
from google.cloud import ndb
from google.cloud.ndb import exceptions as ndb_exceptions
from google.cloud.ndb.context import Context, get_context

from userlock.apps import find_object, note_made
from userlock.errors import ConfigurationError

#: Datastore does not answer. Of several queries at once, ndb reports an error of its own.
DATASTORE_ERRORS = (GoogleAPIError, GoogleAuthError, ndb_exceptions.Error)


def find_client(name: str) -> ClientOfProcess:
    """Import an app's `ndb.Client`, or a function that makes it, by its `module:attribute`."""
    found = find_object(name, object, "client")
    if not isinstance(found, ndb.Client) and not callable(found):
        raise ConfigurationError(
            f"{name} is a {type(found).__name__}, no ndb.Client, nor a function that makes one"
        )
    return ClientOfProcess(found)


class ClientOfProcess:
    """An `ndb.Client`, a function that makes one in each process, or None."""

    def __init__(self, client: Any) -> None:
        if not (client is None or callable(client) or hasattr(client, "context")):
            raise TypeError(
                f"client must be an ndb.Client, or a function that makes one, not {client!r:.80}"
            )
        self._client = client
        self._made: tuple[int, Any] = (0, None)
        if client is not None:
            note_made(self)

    @property
    def identity(self) -> int:
        """Return the same for all that open the contexts of one client."""
        return id(self._client)

    def get(self) -> Any:
        if not callable(self._client):
            return self._client
        made_in, client = self._made
        if made_in != os.getpid():
            client = self._client()
            self._made = os.getpid(), client
        return client

    def is_elsewhere(self) -> bool:
        """Return whether the ndb context that is open is one of another database."""
        client = self.get()
        return client is not None and _place_of(get_context().client) != _place_of(client)

    @contextlib.contextmanager
    def context(self, user: str, *, own: bool = False) -> Iterator[None]:
        """Open an ndb context for a `user` (in words), where none of its database is open; with
        `own` in any case, if there is a client, in the namespace of the one that is open."""
        current, client = get_context(False), self.get()
        adopts = current is not None and not self.is_elsewhere()
        if adopts and not (own and client is not None):
            yield
            return
        if not hasattr(client, "context"):
            what = f"a {type(client).__name__}, which is no ndb.Client"
            if client is None:
                what = "used outside of an ndb context"
            raise ConfigurationError(f"{user} {what}. To fix it: give it client=ndb.Client")
        # A tenant's stays the tenant's.
        options = {"namespace": current.get_namespace()} if adopts and current else {}
        with own_context(client, **options):
            yield


@contextlib.contextmanager
def own_context(client: Any, **options: Any) -> Iterator[None]:
    """Open an ndb context of its own, also where one is open. Options: those of ndb's."""
    if get_context(False) is None:
        with client.context(**options):
            yield
    else:  # ndb's own function refuses a second one
        with Context(client, **options).use() as context:
            try:
                yield
                context.eventloop.run()
            finally:
                context.clear_cache()  # ndb would put it into the one around


def is_foreign(key: Any) -> bool:
    """Return whether a key is one of another database than the ndb context's."""
    return (key.project(), key.database() or "") != _place_of(get_context().client)


def _place_of(client: Any) -> tuple[Any, Any]:
    return getattr(client, "project", None), getattr(client, "database", None) or ""
