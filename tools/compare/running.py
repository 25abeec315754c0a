"""A program on two servers, and where their replies differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from tools.compare.boundaries import boundaries
from tools.compare.messages import entity_text, from_index, key_text, value_text
from tools.compare.programs import AUTOMATIC, CHECK, CURSOR, TRANSACTION, VERSION, Step, program
from userlock_emulator.datastore import protos
from userlock_emulator.datastore.protos import Message

_SERVICE = "/google.datastore.v1.Datastore/"
_TIMEOUT_SECONDS = 20.0
_MAX_BATCHES = 20
#: After one of these with different replies the data differs too.
_WRITES = ("Commit", "BeginTransaction", "ReserveIds")

#: A reply without ids, versions, times and cursors: the texts of its parts.
Outcome = dict[str, Any]
ERROR, MESSAGE = "error", "message"
#: The feature of a request from the table of limits.
BOUNDARY = "boundary"


@dataclass(frozen=True)
class Difference:
    """A step with different replies.

    Attributes:
        seed: the program's.
        number: the number of the step in it, from 1.
        step: the step.
        part: the part of the reply that differs: "error", or a field.
        ours, theirs: that part, or the error if one reply is none.
        said: the messages of both errors, empty without one.
    """

    seed: int
    number: int
    step: Step
    part: str
    ours: Any
    theirs: Any
    said: tuple[str, str]


class Server:
    """A Datastore emulator by its address, and the place of a program in it."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(address, options=options)
        # Of the last transaction that began, the last query, and the last look-up.
        self._transaction = b""
        self._cursor = b""
        self._version = 0

    def run(self, step: Step) -> Outcome:
        """Send a step, and return the outcome."""
        request = type(step.request)()
        request.CopyFrom(step.request)
        self._fill(request)
        if step.rpc == "RunQuery":
            self._cursor = b""  # until there are results
        try:
            response = self._call(step.rpc, request)
            if step.rpc == "RunQuery":
                return _of_batches(self._batches(request, response))
        except grpc.RpcError as error:
            return {ERROR: error.code().name, MESSAGE: " ".join(str(error.details()).split())}
        if step.rpc == "BeginTransaction":
            self._transaction = response.transaction
        if step.rpc == "Lookup":
            self._version = next((each.version for each in response.found), 0)
        return _OUTCOMES[step.rpc](response)

    def _fill(self, request: Message) -> None:
        """Put ids of transactions and versions in the places of their placeholders."""
        fields = request.DESCRIPTOR.fields_by_name
        if "read_options" in fields and request.read_options.transaction == TRANSACTION:
            request.read_options.transaction = self._transaction
        if "transaction" in fields and request.transaction == TRANSACTION:
            request.transaction = self._transaction
        if "query" in fields and request.query.start_cursor == CURSOR:
            request.query.start_cursor = self._cursor
        for mutation in request.mutations if "mutations" in fields else ():
            if mutation.base_version == VERSION:
                mutation.base_version = self._version

    def _call(self, rpc: str, request: Message) -> Message:
        method: Callable[..., Message] = self._channel.unary_unary(
            _SERVICE + rpc,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(protos, f"{rpc}Response").FromString,
        )
        return method(request, timeout=_TIMEOUT_SECONDS, wait_for_ready=True)

    def _batches(self, request: Message, response: Message) -> Iterator[Message]:
        """Yield the batches of a query to its end."""
        for _ in range(_MAX_BATCHES):
            batch = response.batch
            self._cursor = batch.end_cursor
            yield batch
            if batch.more_results != batch.NOT_FINISHED or request.HasField("gql_query"):
                return
            request.query.start_cursor = batch.end_cursor
            request.query.offset = max(request.query.offset - batch.skipped_results, 0)
            if request.query.HasField("limit"):
                request.query.limit.value -= len(batch.entity_results)
            response = self._call("RunQuery", request)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def compare(ours: str, theirs: str, seeds: Sequence[int], *, mark: str) -> Iterator[Difference]:
    """Run the table of limits and programs on two servers, and yield each difference.

    A program ends at a difference after which the data of the servers may differ.

    Args:
        ours: the address of one server.
        theirs: the address of the other.
        seeds: the programs' seeds.
        mark: makes the projects differ from those of earlier runs on the same server.
    """
    left, right = Server(ours), Server(theirs)
    try:
        for step in _boundaries(f"compare-{mark}-boundaries"):
            yield from _differences(0, 0, step, left.run(step), right.run(step))
        for seed in seeds:
            for number, step in enumerate(program(seed, f"compare-{mark}-{seed}"), 1):
                found = list(_differences(seed, number, step, left.run(step), right.run(step)))
                yield from found
                if found and (step.rpc in _WRITES or CHECK in step.features):
                    break
    finally:
        left.close()
        right.close()


def _boundaries(project: str) -> Iterator[Step]:
    """Yield the requests of the table of limits. What their replies hold is not compared."""
    for each in boundaries(project):
        features = frozenset({BOUNDARY, f"rule: {each.rule}", f"place: {each.place}"})
        yield Step(each.rpc, each.request, features)


def _differences(
    seed: int, number: int, step: Step, ours: Outcome, theirs: Outcome
) -> Iterator[Difference]:
    said = str(ours.get(MESSAGE, "")), str(theirs.get(MESSAGE, ""))
    if ERROR in ours or ERROR in theirs:
        errors = ours.get(ERROR, "OK"), theirs.get(ERROR, "OK")
        if errors[0] != errors[1]:
            yield Difference(seed, number, step, ERROR, *errors, said)
        return
    for part in ours if BOUNDARY not in step.features else ():
        if ours[part] != theirs[part]:
            yield Difference(seed, number, step, part, ours[part], theirs[part], said)


# --- outcomes -------------------------------------------------------------------------------------


def _of_batches(batches: Iterator[Message]) -> Outcome:
    results: list[str] = []
    skipped = 0
    marked = False
    batch = None
    for batch in batches:
        results += [entity_text(each.entity) for each in batch.entity_results]
        skipped += batch.skipped_results
        marked |= any(from_index(each.entity) for each in batch.entity_results)
    assert batch is not None
    result_type = protos.EntityResult.ResultType.Name(batch.entity_result_type)
    return {
        "results": results,
        "marks of index values": marked,
        "skipped results": skipped,
        "type of results": result_type,
        "more results": protos.QueryResultBatch.MoreResultsType.Name(batch.more_results),
    }


def _of_aggregation(response: Message) -> Outcome:
    values = [
        {
            alias: value_text(result.aggregate_properties[alias])
            for alias in sorted(result.aggregate_properties)
        }
        for result in response.batch.aggregation_results
    ]
    more = protos.QueryResultBatch.MoreResultsType.Name(response.batch.more_results)
    return {"values": values, "more results": more}


def _of_lookup(response: Message) -> Outcome:
    return {
        "found": sorted(entity_text(each.entity) for each in response.found),
        "missing": sorted(key_text(each.entity.key) for each in response.missing),
        "deferred": len(response.deferred),
    }


def _of_commit(response: Message) -> Outcome:
    results = response.mutation_results
    return {
        "keys": [_allocated(each.key) for each in results],
        "conflicts": [each.conflict_detected for each in results],
        "transform results": [list(map(value_text, each.transform_results)) for each in results],
        "versions": [each.version > 0 for each in results],
    }


def _allocated(key: Message) -> str:
    """Return a key with a mark in the place of an automatic id."""
    if not key.path:
        return ""
    if key.partition_id.namespace_id == AUTOMATIC and key.path[-1].id:
        return "automatic"
    return key_text(key)


_OUTCOMES: dict[str, Callable[[Message], Outcome]] = {
    "Lookup": _of_lookup,
    "Commit": _of_commit,
    "RunAggregationQuery": _of_aggregation,
    "BeginTransaction": lambda response: {"transaction": bool(response.transaction)},
    "Rollback": lambda _: {},
    "ReserveIds": lambda _: {},
    "AllocateIds": lambda response: {"keys": [_allocated(each) for each in response.keys]},
}
