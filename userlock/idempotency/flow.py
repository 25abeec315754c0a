"""One attempt of a request: what it has done is stored, and done once.

attempt A                        the row                 attempt B
phase "ride", token a ─────────▶ ride
charge, is paused                ride, charge asked
                                 token b ◀────────────── takes over: A's lease has ended
                                 ride, charge ◀───────── charge, by the same key
charge: stored if token a ─────▶ refused: `FlowTakenOver`
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from google.cloud import ndb

from userlock import errors
from userlock.arguments import check_bool, check_count, check_errors, check_kind, check_seconds
from userlock.bounded_calls import BoundedCalls
from userlock.clock import Clock
from userlock.idempotency.answers import Answer, check_status, json_answer
from userlock.idempotency.rows import MOST_BYTES, Request, RequestRow, points_in
from userlock.idempotency.user_lock import UserLock
from userlock.json_values import check, copied, written
from userlock.ndb.context import in_transaction
from userlock.ndb.owners import micros_now, moment_of
from userlock.ndb.patches import look_up
from userlock.ndb.transactions import finish_writes, open_transaction
from userlock.signals import raise_interrupt

log = logging.getLogger(__name__)

#: How long a call of another service may take by default, and at most. In seconds.
CALL_SECONDS, _MOST_SECONDS = 30.0, 86_400.0
_CALLS = BoundedCalls(256, "userlock-call")
#: The pause before another call of a service that has failed; doubles. In seconds.
_FIRST_PAUSE = 0.2
_RETRY_AFTER = 5
#: Of the text of a final error, in characters.
_MOST_DETAIL = 2_000


class Finished(BaseException):
    """The flow has its answer; its function need not go on. No handler in between may stop it."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


class End:
    """The end of a request: its answer."""

    def __init__(self) -> None:
        self.answer: Answer | None = None

    def respond(self, value: Any, status: int = 200) -> None:
        """Answer with a JSON value.

        Raises:
            ValueError: JSON would not give the value back as it is, or the status is of no answer
                that is kept: those are from 200 to 499. With 204, 205 and 304 the value is None.
        """
        self.answer = json_answer(value, check_status(status, body=value is not None))


class Flow:
    """One attempt of a request. For one thread.

    Attributes:
        user_id: the owner, a lock id.
        key: the idempotency key.
        params: the request's parameters.
        arguments: those of the view, from its route.
        attempt: its number: 1, unless it resumes another one.
    """

    def __init__(
        self,
        row_key: Any,
        row: Any,
        fields: dict[str, Any],
        clock: Clock,
        keep_seconds: float,
        claim_seconds: float,
        request: Request,
        lock: UserLock,
    ) -> None:
        self.user_id: str = fields["user"]
        self.key: str = fields["idempotency_key"]
        self.params = copied(request.params)
        self.arguments: Mapping[str, Any] = request.arguments or {}
        self.attempt: int = fields["attempts"]
        self.answer: Answer | None = None
        #: Lets a run of the view, a step or a call read the request's body from its beginning, as
        #: what came before it may have run, or not.
        self.rewind: Callable[[], object] = lambda: None
        self._row: Any = row  # None if it is not stored yet
        #: The fields of one that is not stored yet.
        self._new: dict[str, Any] | None = None if row else fields
        #: Whether it is certain that nothing is stored: no commit has failed.
        self._surely_new = row is None
        self._request = request
        self._row_key = row_key
        self._token: str = fields["token"]
        self._begun_at: int = fields["begun_at"]
        self._points: list[dict[str, Any]] = points_in(row.points) if row else []
        #: The names of the points that this run of the function has come by.
        self._passed: list[str] = []
        self._running_step = self._failed_step = ""
        self._written: tuple[Any, list[dict[str, Any]]] = (None, [])
        self._clock = clock
        self._keep_seconds, self._claim_seconds = keep_seconds, claim_seconds
        self._lock = lock

    def __repr__(self) -> str:
        return f"<flow, attempt {self.attempt}>"

    def phase(self, name: str, function: Callable[[], Any]) -> Any:
        """Run a function in a transaction, once per request, and return its output.

        The transaction writes what the function puts and stages, and the output. An attempt that
        resumes the request gets the stored output; the function does not run then. As all functions
        of transactions, it may run more than once within one. A view's, as its calls and its last
        block, reads the body of the request from the beginning each time.

        Args:
            name: unlike those of the request's other phases and calls.
            function: returns a JSON value.

        Raises:
            FlowTakenOver: another attempt has taken over. Nothing was written.
            FlowChanged: the request was begun by code with other phases.
            NotStorable: the output is no JSON value, or too long. Nothing was written.
            RuntimeError: an earlier step has failed, or this is within a step, or after the answer.
        """
        with self._step(name):
            point = self._reached(name, "phase")
            if point is None:
                point = {"name": name, "kind": "phase"}

                def work() -> None:
                    row = self._read()
                    self.rewind()
                    point["out"] = self._storable(name, function())
                    self._put(self._mine(row()), [*self._points, point])

                self._commit(functools.partial(ndb.transaction, work))
            return copied(point["out"])  # what is stored does not change with it

    def external(
        self,
        name: str,
        call: Callable[[str], Any] | Callable[[str, Any], Any],
        *,
        final: Mapping[type[Exception], int] | None = None,
        detail: bool = False,
        transient: tuple[type[Exception], ...] = (OSError,),
        provider: Any = None,
        attempts: int = 3,
        timeout: float = CALL_SECONDS,
    ) -> Any:
        """Call another service, and return its reply: once it is stored, it is not asked again.

        Meanwhile the user's lock is left, unless code around the flow has it. The call runs in a
        thread of its own, with the context variables of this one; it must not use entities. An
        attempt whose reply was lost calls again with the same key, which the service must honour.

        Args:
            name: unlike those of the request's other phases and calls.
            call: called with a key that is this request's and this name's alone, and with the
                provider, if there is one. Returns a JSON value.
            final: errors that are answers, with their status: the request ends with them.
            detail: whether that answer has the error's text, which may name accounts or addresses.
            transient: errors after which the call is made again, as after `timeout`.
            provider: the service to ask, or a function that chooses one. It is stored before the
                call: a later attempt asks the same one.
            attempts: how often it is called, if it fails for now.
            timeout: for one call, in seconds. One that takes longer fails for now; its thread goes
                on until its client gives up.

        Raises:
            ExternalUnavailable: it fails for now. The request can be sent again.
            LockTimeout: the user's lock was not free in time. The reply is stored.
            FlowTakenOver, FlowChanged, NotStorable: as for `phase`. The call may have been made.
            RuntimeError: as for `phase`.
            ValueError: a status in `final` is none from 200 to 499, or has no body.
        """
        check_bool("detail", detail)
        check_count("attempts", attempts, least=1)
        check_kind("final", final, Mapping | None, "a mapping of errors to statuses")
        final = {kind: check_status(each, body=True) for kind, each in (final or {}).items()}
        check_errors("final=", final)
        check_kind("transient", transient, tuple | list, "a tuple of classes of errors")
        check_errors("transient=", transient)
        with self._step(name):
            points, point = self._points, self._reached(name, "call")
            if point is None:
                chosen = self._storable(name, provider() if callable(provider) else provider)
                point = {"name": name, "kind": "call", "provider": chosen}
                points = [*points, point]
            if "out" in point:
                return copied(point["out"])
            timeout = check_seconds("timeout", timeout, most=_MOST_SECONDS)
            chosen = point["provider"]

            def limited() -> Any:
                self.rewind()
                arguments = () if chosen is None else (copied(chosen),)
                return _CALLS.within(timeout, call, self._key_of(name), *arguments)

            with self._lock.calling() as locked:
                self._change(lambda row: self._put_asked(row, points, locked=locked))
                self._lock.leave()
                out = self._call(name, limited, final, detail, transient, attempts)
                # It is the last one: after a call without a reply there is no other step.
                replied = {**point, "out": self._storable(name, out)}
                self._change(lambda row: self._put(row, [*points[:-1], replied], calling=True))
            return copied(replied["out"])

    def _put_asked(self, row: Any, points: list[dict[str, Any]], *, locked: bool) -> None:
        """Note that this attempt is about to leave the user's lock."""
        row.claimed_locked = locked
        row.claimed_until = micros_now(self._clock) + round(self._claim_seconds * 1e6)
        self._put(row, points, calling=True)

    @contextlib.contextmanager
    def last(self) -> Iterator[End]:
        """Run a block in the transaction that ends the request: changes, jobs and the answer.

        The block runs once. If the transaction conflicts with another one, the function of the
        request is run again; what is stored is not done again.

        Raises:
            FlowTakenOver: another attempt has taken over. Nothing was written.
            NotStorable: the block has given no answer. Nothing was written.
            RuntimeError: this is within a step, or after the answer.
            StaleWriteError and others: a write before the block, whose future was dropped, failed.
        """
        self._check_place("last()")
        self._check_all_reached()
        finish_writes()
        end = End()
        try:
            with open_transaction():
                row = self._read()
                self.rewind()
                yield end
                if end.answer is None:
                    raise self._request.error(
                        errors.NotStorable,
                        "the last block of the request gives no answer. To fix it: call "
                        "end.respond() in it",
                    )
                self._put_answer(self._mine(row()), end.answer)
        except BaseException as error:
            self._failed_step = "last()"
            self._failed(error)
        self.answer = end.answer

    def finish(self, answer: Answer) -> None:
        """End the request with an answer, in a commit of its own.

        Raises:
            FlowTakenOver: another attempt has taken over.
            StaleWriteError and others: a write whose future was dropped has failed.
            TypeError: its headers are no tuple.
            ValueError: its status is none from 200 to 499.
        """
        check_status(answer.status)
        if not isinstance(answer.headers, tuple):
            raise TypeError(
                f"the headers of an Answer are a tuple of (name, value), not {answer.headers!r:.80}"
            )
        self._check_all_reached()
        finish_writes()
        self._change(lambda row: self._put_answer(row, answer))
        self.answer = answer

    def give_back(self) -> None:
        """Let another attempt begin at once: this one has failed. Never raises.

        Of a new request that has done nothing, no row is stored: it would never expire.
        """
        try:  # to read it: it may have a step whose commit was interrupted
            row = self._row or self._row_key.get(use_cache=False, use_global_cache=False)
            if row is not None and row.token == self._token:
                self._put_free(row)
        except Exception as error:  # the claim ends by itself; the caller has an error already
            log.debug("a request is not given back: %s", type(error).__name__)

    def restart(self) -> None:
        """Prepare for another run of the function, in this attempt."""
        self.params = copied(self._request.params)
        self._passed.clear()
        self._failed_step = ""

    def _call(
        self,
        name: str,
        call: Callable[[], Any],
        final: Mapping[type[Exception], int],
        detail: bool,
        transient: tuple[type[Exception], ...],
        attempts: int,
    ) -> Any:
        pause = _FIRST_PAUSE
        while True:
            attempts -= 1
            try:
                return call()
            except Exception as error:
                raise_interrupt(error)
                status = next((final[kind] for kind in final if isinstance(error, kind)), None)
                if status is not None:
                    document = {"title": type(error).__name__, "status": status}
                    if detail:
                        document["detail"] = str(error)[:_MOST_DETAIL]
                    answer = json_answer(document, status)
                    self.finish(answer)
                    raise Finished(answer) from None
                if not isinstance(error, (TimeoutError, *transient)):
                    raise
                if attempts <= 0:
                    raise self._request.error(
                        errors.ExternalUnavailable,
                        f"the call {name} has failed for now ({type(error).__name__})",
                        retry_after=_RETRY_AFTER,
                    ) from error
            self._clock.sleep(pause * random.uniform(0.5, 1))
            pause *= 2

    def _key_of(self, name: str) -> str:
        """Return the key of a call: the same in each attempt, and in no other request."""
        parts = written([self.user_id, self.key, self._begun_at, name])
        return hashlib.sha256(parts).hexdigest()[:48]

    def _reached(self, name: str, kind: str) -> dict[str, Any] | None:
        """Return the stored point of that name, which must be the next one; None: there is none."""
        if not isinstance(name, str) or not name:
            raise ValueError("a phase and a call have a name")
        if name in self._passed:
            raise ValueError(f"the request has two phases or calls of the name {name!r:.80}")
        point = None
        if len(self._passed) < len(self._points):
            point = self._points[len(self._passed)]
            if (point["name"], point["kind"]) != (name, kind):
                self._changed(f"this code goes on with {_words({'name': name, 'kind': kind})}")
        self._passed.append(name)
        return point

    def _check_all_reached(self) -> None:
        if len(self._passed) < len(self._points):
            self._changed("this code ends without it")

    def _changed(self, what: str) -> NoReturn:
        stored = _words(self._points[len(self._passed)])
        raise self._request.error(
            errors.FlowChanged,
            f"the request was begun by other code: {stored} is stored, and {what}. To fix it: "
            f"leave phases and calls as they were, by kind, name and order, until all unfinished "
            f"requests are complete",
        )

    def _storable(self, name: str, value: Any) -> Any:
        try:
            check(value, "it")
            return copied(value)
        except ValueError as error:
            raise self._request.error(
                errors.NotStorable,
                f"the output of {name} cannot be stored: {error}. To fix it: return strings, "
                f"numbers, lists and dicts (of an entity its id)",
            ) from None

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Run a phase or a call in a block. After one that has failed there is no other: it may
        succeed in another attempt, which would then not go the same way.
        """
        self._check_place(name)
        if self._failed_step:
            raise RuntimeError(
                f"{self._failed_step!r:.80} has failed, and the flow goes on with {name!r:.80}: "
                f"another attempt might go another way. To fix it: let the error end the attempt, "
                f"or answer"
            )
        self._running_step = name
        try:
            yield
        except BaseException:
            self._failed_step = name
            raise
        finally:
            self._running_step = ""

    def _check_place(self, name: Any) -> None:
        if self.answer is not None:
            raise RuntimeError(f"{name!r:.80} comes after the answer, which is the end of the flow")
        if self._running_step:
            raise RuntimeError(
                f"{name!r:.80} is within {self._running_step!r:.80}. To fix it: put one after the "
                f"other"
            )
        if in_transaction():
            raise RuntimeError(
                f"{name!r:.80} is a transaction of its own, and there is one already"
            )

    def _read(self) -> Callable[[], Any]:
        """Begin to read the row, with the first look-up of the transaction; return a function that
        waits for it. A new row is not read: it is inserted.
        """
        return (lambda: None) if self._surely_new else look_up(self._row_key)

    def _mine(self, row: Any) -> Any:
        """Return the row as it was read, or a new one."""
        if row is None and self._new is not None:
            return RequestRow(key=self._row_key, **self._new)
        if row is None or row.token != self._token:
            raise self._taken_over()
        return row

    def _put(self, row: Any, points: list[dict[str, Any]], *, calling: bool = False) -> None:
        encoded = written(points)
        if len(encoded) > MOST_BYTES:
            raise self._request.error(
                errors.NotStorable,
                f"the outputs of the request have {len(encoded):,} bytes as JSON; the most is "
                f"{MOST_BYTES:,}. To fix it: store data in entities, and return their ids",
            )
        row.points, row.calling = encoded.decode(), calling
        row.put(use_cache=False, use_global_cache=False)
        self._written = row, points

    def _put_answer(self, row: Any, answer: Answer) -> None:
        if len(answer.body) > MOST_BYTES:
            raise self._request.error(
                errors.NotStorable,
                f"the answer has {len(answer.body):,} bytes; the most is {MOST_BYTES:,}",
            )
        now = micros_now(self._clock)
        row.status, row.headers, row.body = answer.status, answer.headers, answer.body
        row.finished_at = now
        row.expire_at = moment_of(now + round(self._keep_seconds * 1e6))
        # Nobody reads the rest any more: the answer has its room.
        row.params = None
        done = [{**each, "out": None} if "out" in each else each for each in self._points]
        row.points = written(done).decode()
        self._put_free(row)

    def _put_free(self, row: Any) -> None:
        """Put the row with the steps that it has, and without an attempt."""
        row.token, row.claimed_until, row.claimed_locked, row.calling = "", 0, False, False
        row.put(use_cache=False, use_global_cache=False)
        self._written = row, self._points

    def _change(self, change: Callable[[Any], None]) -> None:
        """Change the row alone. As it was written last it need not be read: the put is fenced."""

        def work() -> None:
            row, self._row = self._row, None
            if row is None and not self._surely_new:
                row = self._row_key.get(use_cache=False, use_global_cache=False)
            change(self._mine(row))

        self._commit(work)

    def _commit(self, work: Callable[[], Any]) -> Any:
        """Run a function that puts the row; return its result."""
        try:
            result = work()
        except BaseException as error:
            self._failed(error)
        self._new, self._surely_new = None, False
        self._row, self._points = self._written
        return result

    def _failed(self, error: BaseException) -> NoReturn:
        """Raise the error of a transaction: `FlowTakenOver`, if it is the row's."""
        self._row = None
        self._surely_new = False
        if isinstance(error, errors.StaleWriteError) and error.key == self._row_key:
            raise self._taken_over() from error
        raise error

    def _taken_over(self) -> errors.FlowTakenOver:
        return self._request.error(
            errors.FlowTakenOver,
            "another attempt has taken this request over; this one has committed nothing since",
        )


def _words(point: Mapping[str, Any]) -> str:
    return f"the {point['kind']} {point['name']!r:.80}"
