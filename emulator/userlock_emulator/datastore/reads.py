"""The RPC that reads by key: Lookup."""

from collections.abc import Sequence

from userlock_emulator.datastore import validation
from userlock_emulator.datastore.concurrency import ConcurrencyControl
from userlock_emulator.datastore.encoding import encode_key
from userlock_emulator.datastore.errors import invalid
from userlock_emulator.datastore.masks import Mask, read_mask
from userlock_emulator.datastore.protos import (
    KeyPb,
    LookupResponse,
    Message,
    timestamp,
)
from userlock_emulator.datastore.query_batch import MAX_BATCH_BYTES
from userlock_emulator.datastore.rows import Reader
from userlock_emulator.datastore.sessions import Sessions, database_of
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.datastore.transactions import EntityId


class Reads:
    """The handler of lookups."""

    def __init__(self, storage: Storage, sessions: Sessions, control: ConcurrencyControl) -> None:
        self._storage = storage
        self._sessions = sessions
        self._control = control

    def lookup(self, request: Message) -> Message:
        """Look up entities by key (RPC Lookup)."""
        database = database_of(request)
        mask = read_mask(request)
        if not request.keys:
            raise invalid("A lookup needs at least one key.")
        if len(request.keys) > validation.MAX_LOOKUP_KEYS:
            raise invalid(f"A lookup may have at most {validation.MAX_LOOKUP_KEYS} keys.")
        wanted = [(validation.check_key(key, *database), encode_key(key)) for key in request.keys]
        response = LookupResponse()
        with self._sessions.reading(request.read_options, database, response) as (
            transaction,
            time,
        ):
            if transaction is not None and not transaction.read_only:
                time = self._control.reading(transaction, wanted)
            with self._storage.read(time) as reader:
                _look_up(reader, request.keys, wanted, mask, response)
        return response


def _look_up(
    reader: Reader,
    keys: Sequence[KeyPb],
    wanted: list[EntityId],
    mask: Mask | None,
    response: Message,
) -> None:
    """Fill a LookupResponse. Results beyond a client's size limit are deferred."""
    size = 0
    for key, (partition, encoded) in zip(keys, wanted, strict=True):
        if size > MAX_BATCH_BYTES:
            response.deferred.add().CopyFrom(key)
            continue
        number = reader.catalog.find_partition(partition)
        stored = None if number is None else reader.get(number, encoded)
        if stored is None:
            result = response.missing.add(version=reader.time)
        else:
            result = response.found.add(version=stored.version)
            result.entity.MergeFromString(stored.data)
            if mask is not None:
                mask.cut(result.entity)
            size += len(stored.data)
            result.create_time.CopyFrom(timestamp(stored.created))
            result.update_time.CopyFrom(timestamp(stored.version))
        # ndb finds its results by the bytes of their keys.
        result.entity.key.CopyFrom(key)
    response.read_time.CopyFrom(timestamp(reader.time))
