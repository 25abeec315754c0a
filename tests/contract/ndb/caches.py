"""A global cache for one test."""

from __future__ import annotations

from typing import Any

from google.cloud import ndb


class EmptyGlobalCache(ndb.global_cache._InProcessGlobalCache):
    """ndb's own in-process one, with nothing in it.

    That one keeps its values for the whole process. A write's lock that was left in it would never
    end: it counts as there when it has expired, too, and ndb tries for ever to take it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[bytes, Any] = {}
