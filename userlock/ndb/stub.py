"""The gate: the wrapped stub of a client, through which every RPC passes.

- Lookup and RunQuery: each entity of a watched kind gets its read stamp.
- Commit: each mutation of a watched kind needs a ticket, which is exchanged for the
  version that the write builds on. A mutation without one is not sent.
- AllocateIds: a key that gets an id keeps its ticket.
- Rollback: its error does not hide the reason for it.
- The other reads pass unchanged. An RPC that is not known is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from google.api_core import exceptions as core_exceptions
from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.datastore_v1.types import entity as entity_types
from google.cloud.datastore_v1.types import query as query_types

from userlock.callsite import CallSite, here
from userlock.errors import WriteNotFenced, WriteViolation
from userlock.ndb import commits
from userlock.ndb.calls import Running, begin_call, interrupted
from userlock.ndb.context import current_attempt, in_transaction, request_notes
from userlock.ndb.patches import classes_of, name_in, ndb_key_of
from userlock.ndb.pending import raise_unseen, watch_commit
from userlock.ndb.policies import is_watched
from userlock.ndb.provenance import PARTIAL, Origin, Stamped, origin, place_of_read
from userlock.ndb.transactions import undisguised
from userlock.ndb.wire import PASSED, note_passed, number_in, put_number, raw
from userlock.ndb.writes import Write, redeem

_TRANSACTIONAL = datastore_types.CommitRequest.Mode.TRANSACTIONAL

#: RPCs that write nothing, or no entity, and attributes of a transport that are no RPCs; not its
#: channel, which would lead past the gate.
_HARMLESS = frozenset({"begin_transaction", "reserve_ids", "close", "host", "kind"})


class Gate:
    """The stub of an `ndb.Client`, as the rest of the process sees it."""

    def __init__(self, stub: Any) -> None:
        attributes = vars(self)
        attributes["_userlock_stub"] = stub
        for name, method in _METHODS.items():
            attributes[name] = method(name, stub)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_userlock")):
            raise AttributeError(name)
        found = getattr(self._userlock_stub, name)
        if name not in _HARMLESS:
            raise WriteNotFenced.unknown_rpc(name)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._userlock_stub, name, value)


def _gated_stub(client: Any) -> Any:
    attributes = vars(client)
    if "stub" not in attributes:
        raise AttributeError("this ndb.Client has no stub yet")
    if type(attributes["stub"]) is not Gate:
        attributes["stub"] = Gate(attributes["stub"])
    return attributes["stub"]


#: The attribute `stub` of `ndb.Client`: gated, also in clients that were made before.
client_stub = property(
    _gated_stub,
    lambda client, stub: vars(client).update(stub=stub),
    lambda client: vars(client).pop("stub", None),
)


#: The request that is to be sent, and a function that changes its answer; None: it stays.
_Prepared = tuple[Any, Callable[[Any], Any] | None]


def _as_it_is(request: Any) -> _Prepared:
    return request, None


class _Method:
    def __init__(
        self, name: str, stub: Any, prepare: Callable[[Any], _Prepared] = _as_it_is
    ) -> None:
        self._name, self._stub, self._prepare = name, stub, prepare
        #: Whether Google's transport is behind the gate, not an application's stub.
        self._is_last = type(stub).__module__.startswith("google.")

    def __call__(self, request: Any, *args: Any, **options: Any) -> Any:
        request, take = self._prepare(request)
        answer = begin_call(self._stub, self._name, request, args, options, waits=True)
        return answer if take is None else take(answer)

    def future(self, request: Any, *args: Any, **options: Any) -> Any:
        try:
            request, take = self._prepare(request)
            call = begin_call(self._stub, self._name, request, args, options)
            return call if take is None else _ChangedCall(call, take)
        except BaseException as error:
            return _interrupted(self._name, error)


def _interrupted(rpc: str, error: BaseException) -> Any:
    """Return the call of an RPC of a transaction, as `interrupted`; outside of any, raise."""
    if not in_transaction():
        raise error
    if rpc in ("commit", "rollback"):
        current_attempt().over = False  # its end rolls it back
    return interrupted(error)


class _ChangedCall:
    """A gRPC future in front of another one, whose answer it changes."""

    def __init__(self, call: Any, take: Callable[[Any], Any]) -> None:
        self._call, self._take = call, take

    def result(self, *args: Any, **kwargs: Any) -> Any:
        return self._take(self._call.result(*args, **kwargs))

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._call.add_done_callback(lambda _: callback(self))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


# --- reads ----------------------------------------------------------------------------------


def _lookup(request: Any) -> _Prepared:
    sent = raw(request)
    for key in sent.keys:
        if is_watched(key.path[-1].kind):
            asked = origin(sent.read_options.transaction)
            return request, functools.partial(_stamp_found, asked)
    return request, None


def _stamp_found(asked: Origin, response: Any) -> Any:
    found: list[Any] = []
    answer = raw(response)
    for result in answer.found:
        if is_watched(result.entity.key.path[-1].kind):
            if result.version:
                put_number(result.entity, result.version)  # for the global cache
            found.append(_Result(result, result.version, asked, None))
        else:
            found.append(query_types.EntityResult.wrap(result))
    response.__dict__["found"] = found  # hides the message's own field
    if answer.missing:
        seen = request_notes().ledger
        for result in answer.missing:
            seen.missing(name_in(result.entity.key))
    return response


def _run_query(request: Any) -> _Prepared:
    sent = raw(request)
    kinds = sent.query.kind  # empty for a query of all kinds, and for GQL
    if kinds and not any(is_watched(each.name) for each in kinds):
        return request, None
    asked = origin(sent.read_options.transaction)
    return request, functools.partial(_stamp_batch, asked, place_of_read())


def _stamp_batch(asked: Origin, place: CallSite | None, response: Any) -> Any:
    results = raw(response).batch.entity_results
    if any(is_watched(result.entity.key.path[-1].kind) for result in results):
        batch = response.batch
        whole = batch.entity_result_type == query_types.EntityResult.ResultType.FULL
        batch.__dict__["entity_results"] = [
            _Result(each, each.version if whole else PARTIAL, asked, place) for each in results
        ]
        response.__dict__["batch"] = batch
    return response


def stamped_message(entity: Any, stamp: tuple[int, Origin, CallSite | None]) -> Any:
    """Return the Entity message of google-cloud-datastore's for a (raw) one, with a stamp."""
    message: Any = entity_types.Entity.__new__(entity_types.Entity)
    vars(message).update(_pb=entity, _userlock_stamp=stamp)
    return message


class _Result:
    """One result of a look-up or query, for ndb. Its entity, with its stamp, is made on demand."""

    __slots__ = ("_raw", "_stamp")

    def __init__(self, result: Any, *stamp: Any) -> None:
        self._raw, self._stamp = result, stamp

    @property
    def entity(self) -> Any:
        return stamped_message(self._raw.entity, self._stamp)

    def __getattr__(self, name: str) -> Any:
        return getattr(query_types.EntityResult.wrap(self._raw), name)


# --- ids ------------------------------------------------------------------------------------


def _allocate_ids(request: Any) -> _Prepared:
    """Take the numbers out. In a transaction ndb replaces the key that it has sent by the allocated
    one, which gets the number then."""
    sent = raw(request)
    numbers = [number_in(key) for key in sent.keys]
    if not any(numbers):
        return request, None
    plain = type(sent)()
    plain.CopyFrom(sent)
    for key in plain.keys:
        key.DiscardUnknownFields()
    wrapped = plain if request is sent else type(request).wrap(plain)
    return wrapped, functools.partial(_put_numbers, numbers)


def _put_numbers(numbers: list[int], response: Any) -> Any:
    for key, number in zip(raw(response).keys, numbers, strict=False):
        if number and not number_in(key):
            put_number(key, number)
    return response


# --- commits --------------------------------------------------------------------------------


#: Of the other RPCs that a plan calls.
_REQUESTS: dict[str, Any] = {
    "lookup": datastore_types.LookupRequest,
    "allocate_ids": datastore_types.AllocateIdsRequest,
    "rollback": datastore_types.RollbackRequest,
}


class _Commit(_Method):
    def __call__(self, request: Any, *args: Any, **options: Any) -> Any:
        plan = self._plan_of(request)
        if plan is None:
            return super().__call__(request, *args, **options)
        return plan.run(functools.partial(self._send, type(request), args, options)).result()

    def future(self, request: Any, *args: Any, **options: Any) -> Any:
        try:
            plan = self._plan_of(request)
            if plan is None:
                return begin_call(self._stub, self._name, request, args, options)
            return plan.run(functools.partial(self._send, type(request), args, options))
        except BaseException as error:
            return _interrupted(self._name, error)

    def _plan_of(self, request: Any) -> _Plan | None:
        sent = raw(request)
        if number_in(sent) == PASSED:
            if self._is_last:
                sent.DiscardUnknownFields()
            return None
        plan: _Plan | None = None if request is sent else vars(request).get("_userlock_plan")
        if plan is None or plan.asked != sent.SerializeToString():
            plan = _plan(sent)
            if plan is not None and request is not sent:
                object.__setattr__(request, "_userlock_plan", plan)
        return plan

    def _send(self, kind: Any, args: Any, options: Any, call: commits.Call) -> Any:
        request = call.request
        if call.rpc != "commit":
            wrapped = _REQUESTS[call.rpc].wrap(request)
            return begin_call(self._stub, call.rpc, wrapped, args, options)
        if not self._is_last:
            note_passed(request)
        if hasattr(kind, "wrap"):
            request = kind.wrap(request)
        try:
            return begin_call(
                self._stub, self._name, request, args, options, lands_once=call.lands_once
            )
        except BaseException as error:
            return interrupted(error)


class _Plan:
    """A commit request, its tickets, and their outcomes so far: ndb may send it again."""

    def __init__(
        self, request: Any, tickets: list[Write | None], refused: dict[int, Exception], asked: bytes
    ) -> None:
        #: The caller's request, serialised. A changed one needs another plan.
        self.asked = asked
        self._in_transaction = bool(request.transaction)
        self._tickets = tickets  # of each mutation; None for one of another kind
        #: The error of each settled mutation; None if it has landed. In a transaction, one that is
        #: not sent has none.
        self._settled: dict[int, Exception | None] = {} if self._in_transaction else dict(refused)
        kind = commits.TransactionCommit if self._in_transaction else commits.PlainCommit
        self._commit = kind(request, tickets, refused)

    def run(self, send: Callable[[commits.Call], Any]) -> Running:
        """Send it once."""
        running = Running(self._commit.steps(), self._take, send)
        books: dict[Any, None] = {}
        try:
            for ticket in self._tickets:
                if ticket is not None:
                    ticket.sent_by = running  # from here on, the wait for it may be interrupted
                    books |= dict.fromkeys(ticket.books)
            if self._in_transaction and books:
                watch_commit(running, books)
            running.advance()
        except BaseException as error:
            running.interrupted(error)
            raise
        return running

    def _take(self, result: commits.Result) -> tuple[Any, Exception | None]:
        """Settle the tickets, in the thread that asks. Returns the answer or the error."""
        landed = list(map(type, result.outcomes.values())).count(commits.Landed)
        errors: dict[int, Exception] = {}
        for index, outcome in sorted(result.outcomes.items()):
            ticket = self._tickets[index]
            if ticket is not None and index not in self._settled:
                self._settled[index] = ticket.settle(outcome, landed)
        for index, failed in self._settled.items():
            if failed is not None:
                errors[index] = failed
        first = next(iter(errors.values()), None)
        if self._in_transaction:
            error = first or result.error
            if error is not None:
                return None, error
        response = datastore_types.CommitResponse.wrap(result.response)
        error = result.error or first
        if error is not None:
            answers = response, errors, result.errors
            error._userlock_answer = answers  # type: ignore[attr-defined]  # for `settle`
        return response, error


def _plan(request: Any) -> _Plan | None:
    """Return the plan of a (raw) CommitRequest; None if nothing in it is watched. If it is applied
    as a whole, the error of a mutation that must not be sent is raised."""
    if request.transaction and in_transaction():
        attempt = current_attempt()
        if attempt.books.failures:
            # The write would be missing: ndb's `Key.delete` drops its future in a transaction.
            raise_unseen(attempt.books, "this transaction")
        attempt.over = True
    tickets: list[Write | None] = [None] * len(request.mutations)
    refused: dict[int, Exception] = {}
    for index, mutation in enumerate(request.mutations):
        key = commits.key_of(mutation)
        if not key.path or not is_watched(key.path[-1].kind):
            continue
        ticket = tickets[index] = redeem(key)
        if ticket is not None and ticket.withdrawn:
            why = "another write that was begun with it was refused, so it was not sent"
            refused[index] = ticket.not_fenced(why, "see the error of that write")
            continue
        if ticket is None:
            kinds = classes_of(key.path[-1].kind)
            refused[index] = WriteNotFenced.without_ticket(
                key=ndb_key_of(key),
                put_at=here(),
                deleting=commits.deletes(mutation),
                rival=next((each for each in kinds if not issubclass(each, Stamped)), None),
            )
        elif request.transaction or ticket.relies_on_its_locks:
            try:
                ticket.check_commit()
            except WriteViolation as error:
                refused[index] = error
        if index in refused and (request.transaction or request.mode == _TRANSACTIONAL):
            raise refused[index]
    if not any(tickets) and not refused:
        return None
    asked = request.SerializeToString()
    own = type(request).FromString(asked)
    own.DiscardUnknownFields()  # the tickets
    return _Plan(own, tickets, refused, asked)


def _roll_back(request: Any) -> _Prepared:
    """Note that ndb rolls the transaction back, so that its end does not do so again."""
    if in_transaction():
        current_attempt().roll_back()
    return request, None


_METHODS: dict[str, Callable[[str, Any], _Method]] = {
    "lookup": functools.partial(_Method, prepare=_lookup),
    "run_query": functools.partial(_Method, prepare=_run_query),
    "allocate_ids": functools.partial(_Method, prepare=_allocate_ids),
    "rollback": functools.partial(_Method, prepare=_roll_back),
    "commit": _Commit,
    "run_aggregation_query": _Method,
    "runAggregationQuery": _Method,
}


def settle(rpc: Any, futures: list[Any]) -> None:
    """Give each future of a commit its own result, in place of ndb's function."""
    error, errors = rpc.exception(), {}
    if error is None:
        response = rpc.result()
    else:
        # ndb may have wrapped it: as the last of several attempts, or as of a nested call.
        last: Any = undisguised(error)
        answer = getattr(last, "_userlock_answer", None)
        # A RetryError without an answer is ndb's. With one it is that of a look-up in the commit.
        given_up = answer is None and isinstance(last, core_exceptions.RetryError)
        if given_up and isinstance(last.cause, Exception):
            answer = getattr(undisguised(last.cause), "_userlock_answer", None)
        if answer is None:
            for future in futures:
                if not future.done():
                    future.set_exception(last)
            return
        response, settled, unsettled = answer
        if given_up:  # which of them ndb has sent again
            unsettled = {n: last if commits.is_transient(e) else e for n, e in unsettled.items()}
        errors = unsettled | settled
    # As ndb does, but without a wrapper around each result, which takes longer than all else.
    for index, result in enumerate(response._pb.mutation_results):
        if futures[index].done():
            continue
        if index in errors:
            futures[index].set_exception(errors[index])
        else:
            key = entity_types.Key.wrap(result.key) if result.HasField("key") else None
            futures[index].set_result(key)
