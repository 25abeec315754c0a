"""The ndb client of a process: one that was made before a fork does not work after it."""

from __future__ import annotations

import os
from typing import Any


class ClientOfProcess:
    """A client, or a function that makes one in each process.

    Args:
        client: an `ndb.Client`, a function that returns one, or None.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._made: tuple[int, Any] = (0, None)

    def get(self) -> Any:
        """Return the client; None if there is none."""
        if not callable(self._client):
            return self._client
        made_in, client = self._made
        if made_in != os.getpid():
            client = self._client()
            self._made = os.getpid(), client
        return client
