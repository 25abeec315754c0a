"""A CommitRequest becomes a plan, and answers become outcomes: without ndb or a server."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from google.api_core import exceptions as errors
from google.cloud.datastore_v1.types import datastore as datastore_types

from tests.interpreters import run_python
from userlock.constraints import claims as claim_rows
from userlock.ndb import commits
from userlock.ndb.commits import (
    Answer,
    Call,
    InDoubt,
    Landed,
    PlainCommit,
    Refused,
    Result,
    TransactionCommit,
)

LOST = errors.ServiceUnavailable("the reply is lost")
_messages: Any = datastore_types


@dataclasses.dataclass
class Write:
    """Implements `commits.Write`."""

    base_version: int = 0
    read_version: int = 0
    must_be_new: bool = False
    write_id: tuple[str, int] | None = None
    new_id: bool = False
    doubtful: bool = False
    stays: bool = False
    rows: Any = None
    further: Any = claim_rows
    guarded: bool = True


def upsert(name: str | None, points: int = 0) -> Any:
    return {"upsert": {"key": key(name), "properties": {"points": {"integer_value": points}}}}


def delete(name: str) -> Any:
    return {"delete": key(name)}


def key(name: str | None) -> Any:
    return {"path": [{"kind": "Learner", **({} if name is None else {"name": name})}]}


def request(*mutations: Any, transaction: bytes = b"") -> Any:
    made = _messages.CommitRequest(
        project_id="p", database_id="d", mutations=list(mutations), transaction=transaction
    )
    made.mode = "TRANSACTIONAL" if transaction else "NON_TRANSACTIONAL"
    return _messages.CommitRequest.pb(made)


def committed(*versions: int) -> Any:
    results = [{"version": each} for each in versions]
    response = _messages.CommitResponse(mutation_results=results, index_updates=1)
    return _messages.CommitResponse.pb(response)


def found(
    *entities: tuple[str, int, dict[str, int]], missing: Sequence[tuple[str, int]] = ()
) -> Any:
    """Return the answer to a look-up: name, version and properties; name and version."""
    response = _messages.LookupResponse(
        found=[
            {
                "version": version,
                "entity": {
                    "key": key(name),
                    "properties": {
                        each: {"integer_value": value} for each, value in properties.items()
                    },
                },
            }
            for name, version, properties in entities
        ],
        missing=[{"version": version, "entity": {"key": key(name)}} for name, version in missing],
    )
    return _messages.LookupResponse.pb(response)


def play(plan: Any, *answers: Any) -> tuple[Result, list[Call]]:
    """Carry a plan out. `answers`: what each call gets, in order; errors among them."""
    left = list(answers)
    calls: list[Call] = []
    steps = plan.steps()
    sent: list[Answer] | None = None
    while True:
        try:
            step = steps.send(sent)
        except StopIteration as stop:
            assert not left, "it has not asked for all of the answers"
            return stop.value, calls
        if isinstance(step, float):
            sent = []
            continue
        sent = []
        for call in step:
            copied = type(call.request)()
            copied.CopyFrom(call.request)
            calls.append(call._replace(request=copied))
            answer = left.pop(0)
            is_error = isinstance(answer, Exception)
            sent.append(Answer(None if is_error else answer, answer if is_error else None))


def transaction(*mutations: Any, writes: Sequence[Write | None]) -> TransactionCommit:
    return TransactionCommit(request(*mutations, transaction=b"t"), writes)


_INSERT = Write(must_be_new=True, stays=True, write_id=("w", 1))


@pytest.mark.parametrize(
    ("write", "more", "once"),
    [
        (_INSERT, [], True),
        (dataclasses.replace(_INSERT, stays=False), [], False),
        (dataclasses.replace(_INSERT, must_be_new=False), [], False),
        (dataclasses.replace(_INSERT, write_id=None), [], False),
        (_INSERT, [delete("ann")], False),
    ],
)
def test_a_commit_that_a_second_copy_of_is_refused(
    write: Write, more: list[Any], once: bool
) -> None:
    """Only that begins its transaction itself: a copy that comes late must change nothing."""
    mutations = [upsert("ann"), upsert("bob"), *more]
    writes = [write, Write(), *(Write() for _ in more)]
    _, (commit,) = play(transaction(*mutations, writes=writes), committed(*[7] * len(mutations)))
    assert commit.lands_once is once


class TestClaims:
    """A mutation with unique values goes in a transaction of its own, after a look-up."""

    def plan(self) -> PlainCommit:
        return PlainCommit(request(delete("ann")), [Write(rows=claim_rows.Claims())])

    def test_each_is_refused_by_itself_in_one_transaction(self) -> None:
        writes = [Write(base_version=7, rows=claim_rows.Claims()) for _ in range(3)]
        plan = PlainCommit(request(*map(upsert, ("ann", "bob", "cid"))), writes)
        looked = found(("ann", 8, {}), ("bob", 7, {}), ("cid", 9, {}))
        looked.transaction = b"t"
        result, calls = play(plan, looked, committed(10))
        assert [call.rpc for call in calls] == ["lookup", "commit"]
        assert len(calls[1].request.mutations) == 1
        assert result.outcomes == {0: Refused(8), 1: Landed(10), 2: Refused(9)}
        assert [each.version for each in result.response.mutation_results] == [0, 10, 0]

    def test_a_lost_commit_that_is_over_is_looked_up_and_tried_again(self) -> None:
        """Until somebody else's change shows: then it may be its own that it has met."""
        write = Write(base_version=7, read_version=7, rows=claim_rows.Claims())
        plan = PlainCommit(request(upsert("ann", 1)), [write])
        looked = [found(("ann", version, {})) for version in (7, 7, 7, 9)]
        for each in looked:
            each.transaction = b"t"
        over = errors.InvalidArgument("The referenced transaction has expired")
        unchanged, changed = looked[1], looked[3]
        answers = [looked[0], LOST, over, unchanged, None, looked[2], LOST, over, changed, None]
        result, calls = play(plan, *answers, changed, None)
        assert [call.rpc for call in calls] == [
            *("lookup", "commit", "commit", "lookup", "rollback"),
            *("lookup", "commit", "commit", "lookup", "rollback"),
            *("lookup", "rollback"),
        ]
        assert result.outcomes == {0: Refused(9, may_have_landed=True)}

    def test_a_look_up_that_fails_in_the_middle_is_rolled_back(self) -> None:
        looked = found()
        looked.transaction = b"t"
        looked.deferred.add().CopyFrom(request(delete("ann")).mutations[0].delete)
        refused = errors.InvalidArgument("too many")
        result, calls = play(self.plan(), looked, refused, None)
        assert [call.rpc for call in calls] == ["lookup", "lookup", "rollback"]
        assert result.error is refused

    def test_an_exception_at_each_line_where_its_first_look_up_is_answered(self) -> None:
        """As of a signal, if the answer comes at once. The transaction is rolled back."""
        looked = found(("ann", 7, {}))
        looked.transaction = b"t"
        for line in itertools.count(1):
            steps: Any = self.plan().steps()
            left: list[int] = []
            sys.settrace(functools.partial(_interrupt, left))
            try:
                next(steps)
                left.append(line)
                (call,) = steps.send([Answer(looked, None)])
            finally:
                sys.settrace(None)
            if left:
                break
            assert (call.rpc, call.request.transaction) == ("rollback", b"t")
            steps.close()
        assert line > 5


def _interrupt(left: list[int], frame: Any, event: str, _: object) -> Any:
    """Raise an exception after some lines of `look_up`; a trace function."""
    if event == "line" and left:
        left[0] -= 1
        if not left[0]:
            left.clear()
            raise KeyboardInterrupt
    return functools.partial(_interrupt, left) if frame.f_code.co_name == "look_up" else None


class TestTransactions:
    def test_the_existing_one_of_several_is_looked_up(self) -> None:
        new = Write(must_be_new=True)
        plan = transaction(upsert("ann"), upsert("bob"), writes=[new, new])
        exists = errors.AlreadyExists("entity already exists")
        result, _ = play(plan, exists, found(("bob", 3, {}), missing=[("ann", 9)]))
        assert result.outcomes == {1: Refused(0)}

    over = errors.InvalidArgument("The referenced transaction has expired")

    def test_an_entity_that_was_put_unchanged_keeps_its_version(self) -> None:
        plan = transaction(
            upsert("ann"), upsert("bob"), writes=[Write(write_id=("write_id", 5)), Write()]
        )
        stored = found(("ann", 8, {"points": 0, "write_id": 5}), ("bob", 6, {"points": 0}))
        result, _ = play(plan, LOST, self.over, stored)
        assert result.outcomes == {0: Landed(8), 1: Landed(6)}

    def test_a_missing_entity_proves_nothing_of_others(self) -> None:
        """It may be of a plain model, or of an entity never read."""
        write = Write(read_version=7)
        plan = transaction(delete("ann"), upsert("plain"), writes=[write, None])
        result, _ = play(plan, LOST, self.over, found(missing=[("ann", 9)]))
        assert result.outcomes == {0: InDoubt(LOST)}
        plan = transaction(delete("ann"), writes=[Write()])
        result, _ = play(plan, LOST, self.over, found(missing=[("ann", 9)]))
        assert result.outcomes == {0: InDoubt(LOST)}


_CONFLICT = _messages.CommitResponse.pb(
    _messages.CommitResponse(mutation_results=[{"version": 8, "conflict_detected": True}])
)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    ("make", "write", "answer"),
    [
        (request, Write(base_version=7), _CONFLICT),
        (request, Write(must_be_new=True), errors.AlreadyExists("entity already exists")),
        (transaction, Write(read_version=7), TestTransactions.over),
        (transaction, Write(must_be_new=True), errors.AlreadyExists("entity already exists")),
    ],
)
def test_a_copy_that_the_network_has_sent_is_met(
    make: Any, write: Write, answer: Any, own: bool
) -> None:
    """Of its two answers, the second one has arrived alone."""
    write = dataclasses.replace(write, write_id=("write_id", 5))
    if make is request:
        plan: Any = PlainCommit(request(upsert("ann")), [write])
    else:
        plan = transaction(upsert("ann"), writes=[write])
    stored = found(("ann", 8, {"points": 0, "write_id": 5 if own else 6}))
    if make is request:  # whose write id ndb itself has put into the entity
        entity = plan._mutations[0].upsert
        entity.properties["write_id"].integer_value = 5
    result, calls = play(plan, answer, stored)
    assert [call.rpc for call in calls] == ["commit", "lookup"]
    if own:
        assert result.outcomes == {0: Landed(8)}
    else:
        assert result.error is answer or isinstance(result.outcomes[0], Refused)


_EXISTS = errors.AlreadyExists("entity already exists")
_NEW_ID = Write(must_be_new=True, new_id=True)


@pytest.mark.parametrize(
    ("mutation", "write", "answers"),
    [
        (delete("ann"), Write(read_version=7), [TestTransactions.over]),
        (upsert("ann"), _NEW_ID, [_EXISTS]),
        (
            upsert("ann"),
            dataclasses.replace(_NEW_ID, write_id=("write_id", 5)),
            [_EXISTS, found(("ann", 8, {"points": 0, "write_id": 6}))],
        ),
    ],
    ids=["all deleted", "an allocated id", "an allocated id and a write id"],
)
def test_what_others_may_have_done_proves_no_copy(
    mutation: Any, write: Write, answers: list[Any]
) -> None:
    """Without a lost reply. They may have deleted it, or learned of the new id."""
    result, _ = play(transaction(mutation, writes=[write]), *answers)
    assert result.error is answers[0] or result.outcomes == {0: Refused(0)}


def test_it_does_not_import_ndb() -> None:
    """In a process of its own, as this one has imported it."""
    code = (
        "import sys, importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('commits', {commits.__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "sys.modules['commits'] = module\n"
        "spec.loader.exec_module(module)\n"
        "assert not [name for name in sys.modules if 'ndb' in name], sys.modules\n"
    )
    process = run_python("-c", code)
    assert process.returncode == 0, process.stderr


def test_the_answers_of_several_commits_are_put_together() -> None:
    changed, created = committed(8), committed(9)
    changed.index_updates, created.index_updates = 2, 3
    created.commit_time.seconds = 7
    for answers in ([changed, created], [LOST, created]):
        writes = [Write(base_version=7), Write(must_be_new=True)]
        result, _ = play(PlainCommit(request(upsert("old"), upsert("new")), writes), *answers)
        lost = answers[0] is LOST
        response = result.response
        assert (response.index_updates, response.commit_time.seconds) == (3 if lost else 5, 7)
        assert [each.version for each in response.mutation_results] == [0 if lost else 8, 9]
