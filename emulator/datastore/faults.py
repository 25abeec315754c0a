"""Faults on demand, to test an application's handling of Datastore errors.

    with emulator.start() as datastore:
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
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TypedDict, Unpack

from emulator.datastore import gql
from emulator.datastore.catalog import Partition
from emulator.datastore.errors import CONTENTION, Code, DatastoreError
from emulator.datastore.protos import Message, RollbackRequest

RPCS = (
    "Lookup", "RunQuery", "RunAggregationQuery", "BeginTransaction", "Commit", "Rollback",
    "AllocateIds", "ReserveIds",
)  # fmt: skip

Run = Callable[[Message], Message]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The requests that meet a fault, and the fault's effect on them.

    Attributes:
        name: name of the kind of fault.
        code: status code of the RPC; None: the normal reply.
        message: the text that goes with the code.
        applied: the RPC is executed before it fails or is delayed.
        seconds: length of the delay; None: until the fault is removed.
        rpc: only requests of this RPC, named as in the proto; None: any.
        kind: only requests with a key, a mutation or a query of this kind;
            None: any.
        count: number of requests that meet the fault; None: all, until it is removed.
        skip: number of matching requests that pass first.
    """

    name: str
    code: Code | None = None
    message: str = ""
    applied: bool = False
    seconds: float | None = 0.0
    rpc: str | None = None
    kind: str | None = None
    count: int | None = 1
    skip: int = 0

    def __post_init__(self) -> None:
        if self.rpc is not None and self.rpc not in RPCS:
            raise ValueError(f"there is no RPC {self.rpc!r}; there are: {', '.join(RPCS)}")
        if self.count is not None and self.count < 1:
            raise ValueError(f"the count must be at least 1, not {self.count}")
        if self.skip < 0:
            raise ValueError(f"no requests can be skipped {self.skip} times")
        if self.seconds is not None and not 0 <= self.seconds <= threading.TIMEOUT_MAX:
            raise ValueError(f"a request cannot be delayed by {self.seconds} seconds")

    def matches(self, rpc: str, request: Message) -> bool:
        """Return whether the fault applies to this request."""
        if self.rpc is not None and self.rpc != rpc:
            return False
        return self.kind is None or self.kind in kinds_in(rpc, request)


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


class Fault:
    """An active fault. As a context manager it is removed at the block's end.

    Attributes:
        id: a number, never used twice.
        rule: the requests that meet it, and its effect.
    """

    def __init__(self, number: int, rule: Rule, faults: "Faults") -> None:
        self.id = number
        self.rule = rule
        self._faults = faults
        self._skip = rule.skip
        self._hits = 0
        self._inside = 0
        self._removed = threading.Event()

    @property
    def hits(self) -> int:
        """Return the number of requests that have met the fault."""
        return self._hits

    def wait(self, hits: int = 1, timeout_seconds: float = 10.0) -> None:
        """Wait until that many requests have met the fault.

        Raises:
            TimeoutError: fewer requests have met it.
        """
        changed = self._faults._changed
        with changed:
            if not changed.wait_for(lambda: self._hits >= hits, timeout_seconds):
                raise TimeoutError(f"the fault {self.rule} was met {self._hits} of {hits} times")

    def remove(self) -> None:
        """Remove the fault. Requests that it is delaying continue at once."""
        self._removed.set()
        self._faults._tidy()

    def __enter__(self) -> "Fault":
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    @property
    def _over(self) -> bool:
        spent = self._hits == self.rule.count and not self._inside
        return spent or self._removed.is_set()

    def _meets(self, rpc: str, request: Message) -> bool:
        spent = self._removed.is_set() or self._hits == self.rule.count
        if spent or not self.rule.matches(rpc, request):
            return False
        if self._skip:
            self._skip -= 1
            return False
        self._hits += 1
        self._inside += 1
        return True

    def _carry_out(self, run: Run, request: Message) -> Message:
        rule = self.rule
        response = run(request) if rule.applied else None
        self._removed.wait(rule.seconds)
        if rule.code is not None:
            raise DatastoreError(rule.code, rule.message)
        return run(request) if response is None else response


class Matching(TypedDict, total=False):
    """The requests that meet a fault: see `Rule`."""

    rpc: str | None
    kind: str | None
    skip: int


class Faults:
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
        self._roll_back = roll_back
        self._changed = threading.Condition()
        self._planted: tuple[Fault, ...] = ()
        self._numbers = itertools.count(1)

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

    def plant(self, rule: Rule) -> Fault:
        """Add a fault with any rule."""
        with self._changed:
            fault = Fault(next(self._numbers), rule, self)
            self._planted = (*self._planted, fault)
        return fault

    @property
    def planted(self) -> tuple[Fault, ...]:
        """Return the active faults, oldest first."""
        return self._planted

    def clear(self) -> None:
        """Remove all faults. Requests that are being delayed continue at once."""
        for fault in self._planted:
            fault.remove()

    def around(self, rpc: str, run: Run) -> Run:
        """Return `run`, an RPC of that name, wrapped with the faults for it."""

        def run_or_fail(request: Message) -> Message:
            if not self._planted:
                return run(request)
            fault = self._met_by(rpc, request)
            if fault is None:
                return run(request)
            try:
                if fault.rule.code is Code.ABORTED:
                    self._end_transaction(request)
                return fault._carry_out(run, request)
            finally:
                self._left(fault)

        return run_or_fail

    def _met_by(self, rpc: str, request: Message) -> Fault | None:
        with self._changed:
            met = next((fault for fault in self._planted if fault._meets(rpc, request)), None)
            self._changed.notify_all()
        return met

    def _left(self, fault: Fault) -> None:
        with self._changed:
            fault._inside -= 1
        self._tidy()

    def _tidy(self) -> None:
        with self._changed:
            self._planted = tuple(fault for fault in self._planted if not fault._over)

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


def _transactions_of(request: Message) -> Iterable[bytes]:
    fields = request.DESCRIPTOR.fields_by_name
    if "transaction" in fields and request.transaction:
        yield request.transaction
    if "read_options" in fields and request.read_options.transaction:
        yield request.read_options.transaction
