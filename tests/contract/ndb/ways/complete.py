"""The complete lists. Their import from here imports everything that is on them."""

from __future__ import annotations

from tests.contract.ndb.ways import copies, lookups, queries, surroundings, tables, writes

_ORDER = [module.__name__ for module in (lookups, queries, surroundings, copies)]

WAYS_IN = tuple(sorted(tables.WAYS_IN, key=lambda way: _ORDER.index(way.read.__module__)))
WAYS_OUT = tuple(way for way in tables.WAYS_OUT if way.write.__module__ == writes.__name__)
