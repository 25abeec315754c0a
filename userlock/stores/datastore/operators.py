"""Functions for operators of the Datastore store.

See `ListingStore`, `TimedStore` and `ExaminableStore` in `userlock.lock.store`.
Listing costs a read for each row, as every query does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.datastore_v1.types import query as query_types

from userlock.clock import Clock
from userlock.lock.store import Finding, Listed, Stored, StoreUnavailable, Verdict
from userlock.stores.datastore.keys import row_name
from userlock.stores.datastore.rows import Row, read_row
from userlock.stores.datastore.rpc import Patience, Rpc
from userlock.stores.trial import milliseconds, try_out, unreachable

_RunQueryRequest: Any = datastore_types.RunQueryRequest.pb()
_LookupRequest: Any = datastore_types.LookupRequest.pb()
_PropertyFilter: Any = query_types.PropertyFilter
_BATCH = 300
_SECOND = 1_000_000


class ForOperators:
    """Looks at rows by RPCs of its own, in no transaction."""

    _rpc: Rpc
    _prefix: str
    _kind: str
    _clock: Clock
    _timeout: float

    def lock_ids(self, limit: int) -> Iterator[Listed]:
        """As `ListingStore.lock_ids`: by keys-only queries."""
        for sign, hashed in (("=", False), ("#", True)):
            begin = f"{self._prefix}{sign}"
            # The sign after ours in ASCII: beyond it are other prefixes.
            end = f"{self._prefix}{chr(ord(sign) + 1)}"
            for name in self._names(begin, end, limit):
                limit -= 1
                rest = name.removeprefix(begin)
                yield Listed(f"sha256:{rest}" if hashed else rest, hashed, name)

    def _names(self, begin: str, end: str, limit: int) -> Iterator[str]:
        cursor = b""
        while limit > 0:
            reply = self._query(begin, end, min(limit, _BATCH), cursor)
            for result in reply.batch.entity_results:
                limit -= 1
                yield result.entity.key.path[-1].name
            cursor = reply.batch.end_cursor
            if len(reply.batch.entity_results) < 1:
                return

    def _query(self, begin: str, end: str, count: int, cursor: bytes) -> Any:
        patience = self._looking()
        connection = self._rpc._connected(patience)
        request = _RunQueryRequest(project_id=connection.project, database_id=connection.database)
        request.partition_id.CopyFrom(self._key(begin).partition_id)
        query = request.query
        query.kind.add(name=self._kind)
        query.projection.add().property.name = "__key__"
        composite = query.filter.composite_filter
        composite.op = query_types.CompositeFilter.Operator.AND
        for operator, name in (("GREATER_THAN_OR_EQUAL", begin), ("LESS_THAN", end)):
            part = composite.filters.add().property_filter
            part.property.name = "__key__"
            part.op = _PropertyFilter.Operator[operator]
            part.value.key_value.CopyFrom(self._key(name))
        query.limit.value = count
        query.start_cursor = cursor
        wrapped = datastore_types.RunQueryRequest.wrap(request)
        reply = self._rpc._again_if_broken(connection, "run_query", wrapped, patience)
        return datastore_types.RunQueryResponse.pb(reply)

    def read_listed(self, listed: Sequence[Listed]) -> list[Stored | None]:
        """As `ListingStore.read_listed`."""
        rows: dict[str, Row] = {}
        for begin in range(0, len(listed), _BATCH):
            names = [cast(str, each.key) for each in listed[begin : begin + _BATCH]]
            rows.update(self._rows(names))
        found = [rows.get(cast(str, each.key)) for each in listed]
        return [None if row is None or row.gone else row.stored for row in found]

    def _rows(self, names: list[str]) -> Iterator[tuple[str, Row]]:
        patience = self._looking()
        connection = self._rpc._connected(patience)
        request = _LookupRequest(
            project_id=connection.project,
            database_id=connection.database,
            keys=[self._key(name) for name in names],
        )
        wrapped = datastore_types.LookupRequest.wrap(request)
        response = self._rpc._again_if_broken(connection, "lookup", wrapped, patience)
        reply: Any = datastore_types.LookupResponse.pb(response)
        for found in reply.found:
            try:
                yield found.entity.key.path[-1].name, read_row(found, reply.read_time)
            except ValueError:
                continue  # not one of ours

    def seconds_left(self, lock_id: str) -> float | None:
        """As `TimedStore.seconds_left`, by Datastore's clock."""
        name = row_name(self._prefix, lock_id)
        _, row = self._rpc.look_up(self._kind, name, self._looking())
        if row is None or row.gone:
            return None
        return max(row.began + row.ttl - row.now, 0) / _SECOND

    def examine(self) -> list[Finding]:
        """As `ExaminableStore.examine`."""
        from userlock.stores.datastore.store import DatastoreStore

        assert isinstance(self, DatastoreStore)
        server = "datastore"
        try:
            began = time.monotonic()
            connection = self._rpc._connected(self._looking())
            server = f"datastore {connection.project}/{connection.database or '(default)'}"
            self.read("userlock-doctor")
            took = time.monotonic() - began
        except StoreUnavailable as trouble:
            return [
                unreachable(
                    server,
                    trouble.reason,
                    "Are project and database right (GOOGLE_CLOUD_PROJECT), are there "
                    "credentials (gcloud auth application-default login), and may they read and "
                    "write (roles/datastore.user)?",
                )
            ]
        says = f"it answers; the first answer took {milliseconds(took)}"
        findings = [Finding(server, "reachable", Verdict.OK, says, facts={"up": True})]
        emulated = os.environ.get("DATASTORE_EMULATOR_HOST", "")
        if emulated:
            findings.append(
                Finding(
                    server,
                    "emulator",
                    Verdict.WARNING,
                    f"this is an emulator at {emulated}, not Datastore",
                    "Unset DATASTORE_EMULATOR_HOST to ask the real one.",
                    {"emulator": emulated},
                )
            )
        return findings + [
            _as_base_version(finding) for finding in try_out(self, server, patience=self._timeout)
        ]

    def _key(self, name: str) -> Any:
        return self._rpc.key(self._kind, name, self._looking())

    def _looking(self) -> Patience:
        return Patience(self._clock, self._timeout)


def _as_base_version(finding: Finding) -> Finding:
    """In Datastore's words: a change by an outdated version is one with a `base_version`."""
    if finding.subject != "records" or finding.verdict is not Verdict.OK:
        return finding
    return finding._replace(
        says=f"{finding.says}: base_version is honoured",
        facts={**finding.facts, "base_version": True},
    )
