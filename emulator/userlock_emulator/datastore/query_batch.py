"""One batch of query results: offset, limit, size, cursors."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

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
from userlock_emulator.datastore.rows import Reader
from userlock_emulator.datastore.transactions import QueryRange

# Clients keep gRPC's default limit of 4 MiB per message. A batch is closed once it is larger than
# this. The last entity may add another megabyte.
MAX_BATCH_BYTES = 2 * 1024 * 1024
# The service returns at most 300 results at once, whatever the query's limit.
MAX_BATCH_RESULTS = 300
# More than any query can have.
_UNBOUNDED = 2**40

# Above each encoded value, in both directions.
_AFTER_VALUES = b"\xff"


class BatchBuilder:
    """The builder of one QueryResultBatch: runs a query and fills the batch.

    Args:
        reader: the view of the database.
        partition: of the query.
        query: the query.
        mask: cuts the entities.
        aggregated: the properties that an aggregation of the results sums or averages.

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
        if mask is not None and self.query.shown:
            raise invalid("property masks are not allowed on projection queries")
        self._fingerprint = fingerprint(self.query)
        # The number of rows found, skipped ones included.
        self.scanned = 0
        self._aggregated = tuple(dict.fromkeys(aggregated))
        self._start = self._place(query.start_cursor)
        self._end = self._place(query.end_cursor)
        if aggregated:
            if self.query.keys_only:
                raise invalid(
                    "Aggregation over non-key properties is not supported for base query that only"
                    " returns keys."
                )
            # Cursors are of the query's own order. An order by key leaves no two entities to sort.
            # Queries without a kind have no other order.
            unique = not query.kind or any(each.property.name == KEY for each in query.order)
            ordered = not (unique or self._start or self._end)
            self.query = self.query.aggregating(aggregated, ordered=ordered)
        self._runner = runner(reader, self.query, partition)

    def tally(self, limit: int | None) -> Iterator[tuple[tuple[bytes, ...], int]]:
        """Yield the aggregated values of results, encoded, with the number of results with them.

        There is one result for each combination of values of these properties.

        Args:
            limit: more results make no difference.
        """
        for values, times in self._counted(limit) or self._listed(limit):
            self.scanned += times
            yield values, times

    def _counted(self, limit: int | None) -> Iterable[tuple[tuple[bytes, ...], int]] | None:
        """Return the tally from indexes alone, or None if only the rows can tell."""
        request = self._request
        if self._start is not None or self._end is not None:
            return None
        if self._aggregated:
            if request.offset or request.HasField("limit"):
                return None
            return self._runner.tally(self._aggregated)
        counted = self._runner.count(self._stop(limit))
        return None if counted is None else [((), max(0, counted - request.offset))]

    def _listed(self, limit: int | None) -> Iterator[tuple[tuple[bytes, ...], int]]:
        """Yield the tally row by row."""
        places = [self.query.projection.index(name) for name in self._aggregated]
        rows = self._runner.rows(self._start, self._end)
        for row in itertools.islice(rows, self._request.offset, self._stop(limit)):
            yield tuple(row.projected[place] for place in places), 1

    def _stop(self, limit: int | None) -> int:
        """Return the number of rows after which nothing can change."""
        request = self._request
        bounds = [_UNBOUNDED] if limit is None else [limit]
        bounds += [request.limit.value] if request.HasField("limit") else []
        return int(request.offset + min(bounds))

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
        if not cursor:
            return None
        place = decode_cursor(cursor, self._fingerprint, self.query)
        # Behind all combinations of aggregated values of the entity before the cursor.
        after = _AFTER_VALUES if self._aggregated and place.inclusive else b""
        return replace(place, position=place.position + after)
