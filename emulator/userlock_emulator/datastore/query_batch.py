"""One batch of query results: offset, limit, size, cursors."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.cursors import Place, decode_cursor, encode_cursor, fingerprint
from userlock_emulator.datastore.encoding import decode_path, decode_value
from userlock_emulator.datastore.errors import invalid
from userlock_emulator.datastore.masks import Mask
from userlock_emulator.datastore.metadata import runner
from userlock_emulator.datastore.protos import (
    EntityResult,
    KeyPb,
    Message,
    QueryPb,
    QueryResultBatch,
    timestamp,
)
from userlock_emulator.datastore.query import KEY, Row
from userlock_emulator.datastore.query_parser import parse_query
from userlock_emulator.datastore.rows import Reader, StoredEntity
from userlock_emulator.datastore.transactions import QueryRange

# Clients keep gRPC's default limit of 4 MiB per message. A batch is closed once it is larger than
# this. The last entity may add another megabyte.
MAX_BATCH_BYTES = 2 * 1024 * 1024
# The service returns at most 300 results at once, whatever the query's limit.
MAX_BATCH_RESULTS = 300
# More than any query can have.
_UNBOUNDED = 2**40

_Result = TypeVar("_Result")


class BatchBuilder:
    """The builder of one QueryResultBatch: runs a query and fills the batch.

    Args:
        reader: the view of the database.
        partition: of the query.
        query: the query.
        mask: cuts the entities.
        aggregated: the properties by which the results are sorted at last, for an aggregation of
            some of them.

    Raises:
        DatastoreError: INVALID_ARGUMENT or UNIMPLEMENTED, from the constructor.
    """

    def __init__(
        self,
        reader: Reader,
        partition: Partition,
        query: QueryPb,
        mask: Mask | None = None,
        aggregated: Sequence[str] = (),
    ) -> None:
        self._reader = reader
        self.time = reader.time
        self._partition = partition
        self._request = query
        self._mask = mask
        self.query = parse_query(query, partition, reader.catalog.find_partition(partition))
        if aggregated and _takes_some(query):
            self.query = self.query.sorted_at_last(aggregated)
        if mask is not None and (self.query.shown or self.query.keys_only):
            raise invalid("A projection query must not have a property mask.")
        self._runner = runner(reader, self.query, partition)
        self._fingerprint = fingerprint(self.query)
        # The number of rows found, skipped ones included.
        self.scanned = 0
        self._start = self._place(query.start_cursor)
        self._end = self._place(query.end_cursor)

    def results(self, load: Callable[[Row], _Result | None]) -> Iterator[_Result]:
        """Yield the results of the query after its offset and up to its limit, in order.

        Args:
            load: returns the result of a row. Rows without one count neither for the offset nor
                for the limit.
        """
        request = self._request
        limit = request.limit.value if request.HasField("limit") else None
        stop = None if limit is None else request.offset + limit
        loaded = map(load, self._runner.rows(self._start, self._end))
        found = (result for result in loaded if result is not None)
        for result in itertools.islice(found, request.offset, stop):
            self.scanned += 1
            yield result

    def count(self, limit: int | None) -> int | None:
        """Return the number of `results`, at most `limit`, or None if only a scan can tell."""
        request = self._request
        if self._start is not None or self._end is not None:
            return None
        bounds = [limit] if limit is not None else []
        bounds += [request.limit.value] if request.HasField("limit") else []
        enough = min(bounds, default=_UNBOUNDED)
        counted = self._runner.count(request.offset + enough)
        if counted is None:
            return None
        self.scanned = max(0, counted - request.offset)
        return self.scanned

    def load(self, key: bytes) -> StoredEntity:
        """Return the entity of one of the rows."""
        return self._runner.load(key)

    def whole_range(self) -> QueryRange:
        """Return the largest range that the query can have seen."""
        return self._seen(None, complete=True)

    def fill(self, batch: Message) -> QueryRange:
        """Fill the batch and return the range of the query that it has seen."""
        request = self._request
        limit = request.limit.value if request.HasField("limit") else None
        batch.entity_result_type = self._result_type()
        batch.more_results = QueryResultBatch.NO_MORE_RESULTS
        batch.end_cursor = request.start_cursor or self._cursor(())
        last: Row | None = None
        complete = True
        size = 0
        wanted = MAX_BATCH_RESULTS if limit is None else min(limit, MAX_BATCH_RESULTS)
        for row in self._runner.rows(self._start, wanted=request.offset + wanted):
            if self._end is not None and self._end.is_before(row.position):
                batch.more_results = QueryResultBatch.MORE_RESULTS_AFTER_CURSOR
                break
            if batch.skipped_results < request.offset:
                batch.skipped_results += 1
                last = row
                continue
            # This result is behind the limit, so there are more. If none is, it is NO_MORE_RESULTS:
            # a hint in query.proto, and the service looks for the next result where it can
            # (googleapis/google-cloud-datastore#48 and #130).
            if limit is not None and len(batch.entity_results) >= limit:
                batch.more_results = QueryResultBatch.MORE_RESULTS_AFTER_LIMIT
                complete = False
                break
            if len(batch.entity_results) >= MAX_BATCH_RESULTS or size >= MAX_BATCH_BYTES:
                batch.more_results = QueryResultBatch.NOT_FINISHED
                complete = False
                break
            if batch.skipped_results and not batch.entity_results and last is not None:
                batch.skipped_cursor = self._cursor(last.components)
            size += self._add(batch.entity_results.add(), row)
            last = row
        if last is not None:
            batch.end_cursor = self._cursor(last.components)
            if batch.skipped_results and not batch.entity_results:
                batch.skipped_cursor = batch.end_cursor
        self.scanned = batch.skipped_results + len(batch.entity_results)
        batch.snapshot_version = self._reader.time
        batch.read_time.CopyFrom(timestamp(self._reader.time))
        return self._seen(last, complete=complete)

    def _seen(self, last: Row | None, *, complete: bool) -> QueryRange:
        if complete:
            seen_until = None if self._end is None else self._end.position
        else:
            # Nothing was returned, so nothing can have changed.
            seen_until = b"" if last is None else last.position
        return QueryRange(
            self._reader.time,
            self._partition,
            self.query,
            self._start,
            seen_until,
            self.query.keys_only,
        )

    def _add(self, result: Message, row: Row) -> int:
        query = self.query
        result.cursor = self._cursor(row.components)
        if query.shown:
            # Properties that are projected only for DISTINCT follow the ones that are shown.
            for name, encoded in zip(query.shown, row.projected, strict=False):
                result.entity.properties[name].CopyFrom(decode_value(encoded))
        elif not query.keys_only:
            stored = self._runner.load(row.key)
            result.entity.MergeFromString(stored.data)
            if self._mask is not None:
                self._mask.cut(result.entity)
            result.version = stored.version
            result.create_time.CopyFrom(timestamp(stored.created))
            result.update_time.CopyFrom(timestamp(stored.version))
        self._fill_key(result.entity.key, row.key)
        return int(result.ByteSize())

    def _fill_key(self, key: KeyPb, encoded: bytes) -> None:
        partition = self._partition
        key.partition_id.project_id = partition.project
        if partition.database:
            key.partition_id.database_id = partition.database
        if partition.namespace:
            key.partition_id.namespace_id = partition.namespace
        decode_path(encoded, key)

    def _result_type(self) -> int:
        if self.query.shown:
            return int(EntityResult.PROJECTION)
        return int(EntityResult.KEY_ONLY if self.query.keys_only else EntityResult.FULL)

    def _cursor(self, components: tuple[bytes, ...]) -> bytes:
        return encode_cursor(self._fingerprint, self.query, components)

    def _place(self, cursor: bytes) -> Place | None:
        return decode_cursor(cursor, self._fingerprint, self.query) if cursor else None


def _takes_some(query: QueryPb) -> bool:
    """Return whether the order decides which results there are.

    Cursors are of the query's own order. An order by key leaves no two results to sort. Queries
    without a kind have no other order.
    """
    some = query.HasField("limit") or query.offset
    unique = not query.kind or any(order.property.name == KEY for order in query.order)
    return bool(some) and not (unique or query.start_cursor or query.end_cursor)
