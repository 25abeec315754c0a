"""Faults on demand, to test an application's handling of Datastore errors.

    with userlock_emulator.start() as datastore:
        datastore.faults.abort(2, kind="Learner")  # the next two commits of that kind
        datastore.faults.drop_reply()              # the next commit lands without a reply
        with datastore.faults.hold(rpc="Lookup") as held:
            ...                                    # start a thread that does a lookup
            held.wait()                            # its request has arrived and is held
            ...                                    # write from elsewhere

Each request meets at most one fault: the oldest one that matches it. A fault is used up after
`count` requests. Other requests are served as usual, at no cost while there are no faults.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from userlock_emulator.datastore import gql
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.errors import CONTENTION, Code, DatastoreError
from userlock_emulator.datastore.protos import RollbackRequest
from userlock_emulator.port import planting
from userlock_emulator.port.rpcs import Message, Run

RPCS = (
    "Lookup", "RunQuery", "RunAggregationQuery", "BeginTransaction", "Commit", "Rollback",
    "AllocateIds", "ReserveIds",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Rule(planting.Rule):
    """The requests that meet a fault, and the fault's effect on them.

    Attributes:
        code: status code of the RPC; None: the normal reply.
        message: the text that goes with the code.
        applied: the RPC is executed before it fails or is delayed.
        seconds: length of the delay; None: until the fault is removed.
        rpc: only requests of this RPC, named as in the proto; None: any.
        kind: only requests with a key, a mutation or a query of this kind;
            None: any.
    """

    code: Code | None = None
    message: str = ""
    applied: bool = False
    seconds: float | None = 0.0
    rpc: str | None = None
    kind: str | None = None

    def __post_init__(self) -> None:
        if self.rpc is not None and self.rpc not in RPCS:
            raise ValueError(f"there is no RPC {self.rpc!r}; there are: {', '.join(RPCS)}")
        super().__post_init__()
        if self.seconds is not None and not 0 <= self.seconds <= threading.TIMEOUT_MAX:
            raise ValueError(f"a request cannot be delayed by {self.seconds} seconds")

    def matches(self, what: str, about: Message) -> bool:
        """Return whether the fault applies to this RPC and its request."""
        if self.rpc is not None and self.rpc != what:
            return False
        return self.kind is None or self.kind in kinds_in(what, about)

    def described(self) -> dict[str, Any]:
        """Return the rule for a JSON document."""
        return {
            "rpc": self.rpc,
            "kind": self.kind,
            "applied": self.applied,
            "seconds": self.seconds,
        }


def kinds_in(rpc: str, request: Message) -> set[str]:
    """Return the kinds that a request names. Empty if it names none."""
    if rpc == "Commit":
        return {_kind_of_mutation(mutation) for mutation in request.mutations}
    if rpc in ("Lookup", "AllocateIds", "ReserveIds"):
        return {_kind_of_key(key) for key in request.keys}
    if rpc == "RunQuery":
        query = request.query
        if request.WhichOneof("query_type") == "gql_query":
            query = _parsed(gql.parse_query, request) or query
        return {expression.name for expression in query.kind}
    if rpc == "RunAggregationQuery":
        aggregation = request.aggregation_query
        if request.WhichOneof("query_type") == "gql_query":
            aggregation = _parsed(gql.parse_aggregation_query, request) or aggregation
        return {expression.name for expression in aggregation.nested_query.kind}
    return set()


def _parsed(parse: Callable[[Message, Partition], Message], request: Message) -> Message | None:
    """Return a request's GQL query, or None if it is malformed, which the RPC itself reports."""
    with contextlib.suppress(DatastoreError):
        return parse(request.gql_query, Partition(request.project_id, request.database_id, ""))
    return None


def _kind_of_mutation(mutation: Message) -> str:
    operation = mutation.WhichOneof("operation")
    if operation is None:
        return ""
    changed = getattr(mutation, operation)
    return _kind_of_key(changed if operation == "delete" else changed.key)


def _kind_of_key(key: Message) -> str:
    return str(key.path[-1].kind) if key.path else ""


Fault = planting.Fault[Rule]


class Matching(TypedDict, total=False):
    """The requests that meet a fault: see `Rule`."""

    rpc: str | None
    kind: str | None
    skip: int


class Faults(planting.Planting[Rule]):
    """The faults of one emulator. Thread-safe.

    The methods that add a fault take the `count` of requests that meet it (None: all, until it is
    removed), and

        rpc: only requests of this RPC, named as in the proto ("Lookup"); None: any.
        kind: only requests about keys, entities or queries of this kind.
        skip: number of matching requests that pass first.

    and raise ValueError for impossible arguments.

    Args:
        roll_back: the RPC Rollback.
    """

    def __init__(self, roll_back: Run) -> None:
        super().__init__()
        self._roll_back = roll_back

    def abort(self, count: int | None = 1, **matching: Unpack[Matching]) -> Fault:
        """Fail requests with ABORTED, as for contention: nothing is applied, the transaction ends.

        Applies to commits, unless another RPC is named.
        """
        matching.setdefault("rpc", "Commit")
        rule = Rule(name="abort", code=Code.ABORTED, message=CONTENTION, count=count, **matching)
        return self.plant(rule)

    def unavailable(self, count: int | None = 1, **matching: Unpack[Matching]) -> Fault:
        """Fail requests with UNAVAILABLE, as if they had never arrived: nothing is applied."""
        message = "The service is currently unavailable."
        rule = Rule(
            name="unavailable", code=Code.UNAVAILABLE, message=message, count=count, **matching
        )
        return self.plant(rule)

    def deadline_exceeded(
        self, count: int | None = 1, *, applied: bool = False, **matching: Unpack[Matching]
    ) -> Fault:
        """Fail requests with DEADLINE_EXCEEDED; with `applied` after they were executed."""
        rule = Rule(
            name="deadline_exceeded",
            code=Code.DEADLINE_EXCEEDED,
            message="Deadline Exceeded",
            applied=applied,
            count=count,
            **matching,
        )
        return self.plant(rule)

    def drop_reply(self, count: int | None = 1, **matching: Unpack[Matching]) -> Fault:
        """Execute requests, but end them as a broken connection (UNAVAILABLE).

        Applies to commits, unless another RPC is named.
        """
        matching.setdefault("rpc", "Commit")
        rule = Rule(
            name="drop_reply",
            code=Code.UNAVAILABLE,
            message="Socket closed",
            applied=True,
            count=count,
            **matching,
        )
        return self.plant(rule)

    def delay(
        self,
        seconds: float,
        count: int | None = 1,
        *,
        applied: bool = False,
        **matching: Unpack[Matching],
    ) -> Fault:
        """Execute requests late; with `applied` it is the reply that is late."""
        rule = Rule(name="delay", seconds=seconds, applied=applied, count=count, **matching)
        return self.plant(rule)

    def hold(
        self, count: int | None = 1, *, applied: bool = False, **matching: Unpack[Matching]
    ) -> Fault:
        """Delay requests until the fault is removed. Applies to commits, unless another RPC is
        named.
        """
        matching.setdefault("rpc", "Commit")
        rule = Rule(name="hold", seconds=None, applied=applied, count=count, **matching)
        return self.plant(rule)

    def around(self, rpc: str, run: Run) -> Run:
        """Return `run`, an RPC of that name, wrapped with the faults for it."""

        def run_or_fail(request: Message) -> Message:
            fault = self.meet(rpc, request)
            if fault is None:
                return run(request)
            try:
                if fault.rule.code is Code.ABORTED:
                    self._end_transaction(request)
                return _carry_out(fault, run, request)
            finally:
                self.leave(fault)

        return run_or_fail

    def _end_transaction(self, request: Message) -> None:
        """End a transaction, as Datastore does when it aborts one."""
        for transaction in _transactions_of(request):
            rollback = RollbackRequest(
                project_id=request.project_id,
                database_id=request.database_id,
                transaction=transaction,
            )
            # There may be no such transaction; a later request reports that to the client.
            with contextlib.suppress(DatastoreError):
                self._roll_back(rollback)


def _carry_out(fault: Fault, run: Run, request: Message) -> Message:
    rule = fault.rule
    response = run(request) if rule.applied else None
    fault.wait_for_removal(rule.seconds)
    if rule.code is not None:
        raise DatastoreError(rule.code, rule.message)
    return run(request) if response is None else response


def _transactions_of(request: Message) -> Iterable[bytes]:
    fields = request.DESCRIPTOR.fields_by_name
    if "transaction" in fields and request.transaction:
        yield request.transaction
    if "read_options" in fields and request.read_options.transaction:
        yield request.read_options.transaction
