"""Flask, WSGI and Django alike: scope, priority, release and answers. Table by table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.web.sites import SITES, Ask, site
from userlock.contrib.request_scope import APP_ENGINE_HEADERS, BATCH_HEADERS
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, allow_unlocked


class Account(userlock.UserModel):
    """One user's account, locked by its key's name."""

    _lock_id_from_key = userlock.key_id
    points = ndb.IntegerProperty(default=0)


class Report(userlock.Model):
    """Written by the nightly job."""

    _write_policy = userlock.WritePolicy.BATCH_ONLY


def add_points() -> str:
    with userlock.global_lock("ann", wait_timeout=0.5):
        account = Account.get_by_id("ann") or Account(id="ann")
        account.points += 5
        account.put()
    return str(account.points)


def show_points() -> str:
    return str(Account.get_by_id("ann").points)


def facts() -> str:
    scope = userlock.current_scope()
    assert scope is not None
    return f"{scope.priority.value} {scope.batch_work} {scope.max_waiting} {scope.request}"


def forget_the_future() -> str:
    add_points()
    userlock.acquire_lock("ann")
    account = Account.get_by_id("ann")
    with userlock.scope(), allow_unlocked("another process, without the lock"):
        other = account.key.get(use_cache=False)
        other.points += 1
        other.put()
    account.put_async()
    return "fine"


def forget_and_time_out() -> str:
    forget_the_future()
    raise userlock.LockTimeout(lock_id="bob", waited_seconds=1, holder=None)


def fail_locked() -> str:
    userlock.acquire_lock("ann")
    raise ZeroDivisionError


def leave_it_locked() -> str:
    userlock.acquire_lock("ann")
    return "locked"


def put_without_lock() -> str:
    Account(id="ann").put()
    return "written"


def write_report() -> str:
    Report().put()
    return "written"


def in_a_transaction() -> str:
    def add() -> None:
        account = Account.get_by_id("ann")
        account.points += 5
        account.put()

    with userlock.global_lock("ann"):
        ndb.transaction(add)
    return "fine"


WORK: dict[str, Callable[[], str]] = {
    "/points": add_points,
    "/show": show_points,
    "/forget": forget_the_future,
    "/forget-and-time-out": forget_and_time_out,
    "/fail": fail_locked,
    "/leave": leave_it_locked,
    "/no-lock": put_without_lock,
    "/report": write_report,
    "/tasks/report": write_report,
    "/transaction": in_a_transaction,
}


def view(path: str) -> str:
    return WORK.get(path, facts)()


Open = Callable[..., Ask]


@pytest.fixture(params=SITES)
def open_(
    request: pytest.FixtureRequest,
    ndb_client: ndb.Client,
    service: userlock.LockService,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Open]:
    """Open the site in each integration."""
    for name in ("GAE_APPLICATION", "GAE_ENV"):
        monkeypatch.delenv(name, raising=False)
    userlock.configure(service=service)
    opened: list[Any] = []

    def open_site(**options: Any) -> Ask:
        given = {"client": ndb_client, "service": service, "batch_prefixes": ["/tasks/"]}
        opened.append(site(request.param, view, **{**given, **options}))
        ask: Ask = opened[-1].__enter__()
        return ask

    yield open_site
    for each in opened:
        each.__exit__(None, None, None)


@pytest.fixture
def ask(open_: Open) -> Ask:
    return open_()


# --- the scope ----------------------------------------------------------------------------------


def test_a_handler_locks_gets_modifies_and_puts(ask: Ask) -> None:
    assert [ask("/points").text for _ in range(2)] == ["5", "10"]


def test_the_request_says_the_priority(ask: Ask) -> None:
    assert ask("/scope").text == "interactive False 5 POST /scope"
    assert ask("/tasks/scope").text == "batch True 3 POST /tasks/scope"
    for header in (*BATCH_HEADERS, "x-cloudscheduler"):
        assert ask("/scope", {header: "x"}).text == "batch False 3 POST /scope"


def test_no_lock_and_no_scope_outlive_the_request(ask: Ask, service: userlock.LockService) -> None:
    for path in ("/points", "/leave", "/no-lock", "/forget"):
        ask(path)
        assert service.holder("ann") is None, path
        assert userlock.current_scope() is None, path


@pytest.mark.parametrize("own", [True, False], ids=["", "the control"])
def test_a_request_has_an_ndb_context_of_its_own(
    open_: Open, ndb_client: ndb.Client, own: bool
) -> None:
    """Whatever context another request, or a test, has left open in the thread."""
    ask = open_() if own else open_(client=None)
    with ndb_client.context():
        ask("/points")
        before = Account.get_by_id("ann")
        with ThreadPoolExecutor(1) as other:
            other.submit(open_(), "/points").result()
        assert before.points == 5
        assert ask("/show").text == ("10" if own else "5")


def test_other_errors_are_the_frameworks_and_the_lock_is_released(
    ask: Ask, service: userlock.LockService, request: pytest.FixtureRequest
) -> None:
    if "wsgi" in request.node.name:
        with pytest.raises(ZeroDivisionError):
            ask("/fail")
    else:
        assert ask("/fail").status == 500
    assert service.holder("ann") is None
    assert userlock.current_scope() is None


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [503, 409])
def test_a_lock_that_is_not_to_be_had_is_a_problem_document(
    open_: Open, service: userlock.LockService, status: int
) -> None:
    service.acquire("ann", request="POST /elsewhere")
    answer = open_(contention_status=status)("/points")
    assert (answer.status, answer.headers["Retry-After"]) == (status, "1")
    assert answer.headers["Content-Type"] == "application/problem+json"
    body = answer.json
    assert (body["status"], body["error"], body["lock_id"]) == (status, "LockTimeout", "ann")
    assert body["waited_seconds"] == pytest.approx(0.5, abs=0.01)
    assert "elsewhere" not in answer.text, "the holder is for the log, not for the client"


def test_an_outage_with_policy_fail_is_503(
    open_: Open, store: MemoryStore, clock: ManualClock
) -> None:
    ask = open_(service=userlock.LockService(store, clock=clock, outage="fail"))
    store.go_down("connection refused at 10.0.0.7")
    answer = ask("/points")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json["error"] == "LockServiceUnavailable"
    assert "10.0.0.7" not in answer.text


def test_a_refused_write_that_nobody_waited_for_is_409(ask: Ask) -> None:
    answer = ask("/forget")
    assert (answer.status, answer.json["error"]) == (409, "StaleWriteError")
    assert ".py" not in answer.text, "code places are for the log"


def test_an_answer_that_is_an_error_already_is_kept(
    ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    answer = ask("/forget-and-time-out")
    assert (answer.status, answer.json["error"]) == (503, "LockTimeout")
    assert "StaleWriteError" in caplog.text


def test_a_violation_is_logged_and_tells_the_client_nothing(
    ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    answer = ask("/no-lock")
    assert answer.status == 500
    assert "Account" not in answer.text
    assert caplog.text.count("CreatedWithoutLock:") == 1
    (stack,) = [each.getMessage() for each in caplog.records if "was raised here" in each.msg]
    assert __file__ in stack
    assert "-packages/" not in stack, "frames of frameworks say nothing"


@pytest.mark.parametrize("path", ["/points", "/transaction"])
def test_a_write_in_doubt_is_not_to_be_sent_again(ask: Ask, datastore: Any, path: str) -> None:
    """The write has landed: a client that repeats the request would add the points twice."""
    ask("/points")
    datastore.faults.drop_reply(kind="Account")
    answer = ask(path)
    assert answer.status == 500
    assert "Retry-After" not in answer.headers
    assert answer.json["error"] in ("StaleWriteError", "CommitInDoubt")
    assert ask("/points").text == "15"


def test_enforcement_and_fencing_can_be_set_for_the_site(open_: Open) -> None:
    assert open_(enforcement="off", fencing=False)("/no-lock").status == 200


# --- too many -----------------------------------------------------------------------------------


def test_too_many_waiting_is_429_with_retry_after(
    open_: Open, service: userlock.LockService
) -> None:
    service.release(service.acquire("ann"), held_seconds=6.5)
    lease = service.acquire("ann", request="POST /elsewhere")
    ask = open_(max_waiting=0, contention_status=409)
    answer = ask("/points")
    assert (answer.status, answer.headers["Retry-After"]) == (429, "7")
    body = answer.json
    assert body.pop("detail").startswith("Too many requests for the same user")
    assert body.pop("waited_seconds") == pytest.approx(0, abs=0.1)
    assert body == {
        "title": "Too Many Requests",
        "status": 429,
        "error": "TooManyWaiting",
        "lock_id": "ann",
        "waiting": 0,
    }
    service.release(lease)
    assert ask("/points").status == 200


@pytest.mark.parametrize(("most", "refused"), [(None, 0), (5, 3)])
def test_so_many_wait(
    open_: Open, service: userlock.LockService, clock: ManualClock, most: int | None, refused: int
) -> None:
    """Without a bound all eight do: the negative control."""
    service.acquire("ann")
    ask = open_(max_waiting=most)
    statuses: list[int] = []
    entered: list[int] = []

    def come() -> None:
        if len(entered) < 8:
            entered.append(len(entered))
            clock.after(0.001, come)
            statuses.append(ask("/points").status)

    come()
    assert statuses == [429] * refused + [503] * (8 - refused), "each came while others waited"


# --- batch work ---------------------------------------------------------------------------------


def test_only_a_path_or_a_trusted_header_is_batch_work(
    open_: Open, caplog: pytest.LogCaptureFixture
) -> None:
    ask = open_(trusted_headers=["X-CloudTasks-QueueName"])
    assert ask("/tasks/report").status == 200
    assert ask("/report").status == 500
    assert "POST /report is interactive" in caplog.text
    caplog.clear()
    accepted = [each for each in BATCH_HEADERS if ask("/report", {each: "x"}).status == 200]
    assert accepted == ["X-CloudTasks-QueueName"]
    assert "POST /report is batch by a header that anybody can send" in caplog.text


def test_on_app_engine_its_own_headers_are_trusted_and_no_other(
    open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("GAE_APPLICATION", "e~points"), ("GAE_ENV", "standard")):
        with monkeypatch.context() as patched:
            patched.setenv(variable, value)
            ask = open_()
            accepted = [each for each in BATCH_HEADERS if ask("/report", {each: "x"}).status == 200]
            assert accepted == list(APP_ENGINE_HEADERS)


PATHS: list[tuple[str, dict[str, str], bool]] = [
    ("/tasks/report", {}, True),
    ("/tasks/report", {"SCRIPT_NAME": "/x"}, True),
    ("/report", {"SCRIPT_NAME": "/tasks"}, False),
    ("/answers", {"REQUEST_URI": "/tasks/report", "RAW_URI": "/tasks/report"}, False),
    ("/answers", {"HTTP_SCRIPT_NAME": "/tasks"}, False),
    ("//tasks/report", {}, False),
    ("/tasks/%2e%2e/answers", {}, False),
    ("/tasks/\udcff", {}, False),
]


@pytest.mark.parametrize("kind", SITES)
def test_the_path_that_the_app_routes_by_decides(service: userlock.LockService, kind: str) -> None:
    with site(kind, lambda _: facts(), service=service, batch_prefixes=["/tasks/"]) as ask:
        for path, environ, batch in PATHS:
            said = ask(path, **environ).text
            assert said.startswith("batch True" if batch else "interactive False"), path
