"""The controls of the crash points: with a guard off, something happens twice or is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.idempotency.conftest import KEY, Provider, request, rows
from tests.contract.idempotency.paid import Paid, once
from userlock.idempotency import Flow, Flows
from userlock.idempotency import flow as attempts
from userlock.idempotency import rows as stored
from userlock.idempotency.rows import RequestRow
from userlock.idempotency.runner import Run
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

DAY = 24 * 3600


@pytest.fixture
def paid(flows: Flows, ndb_client: ndb.Client, provider: Provider) -> Iterator[Paid]:
    app = Paid(flows, ndb_client, provider)
    yield app
    app.outbox.close()


Patch = pytest.MonkeyPatch


CHARGE, PUT = Provider.charge, attempts.Flow._put
#: Guards that one other attribute takes away.
SIMPLE: dict[str, tuple[Any, str, Any]] = {
    # A transaction does not compare the token of its attempt.
    "token": (attempts.Flow, "_mine", lambda _, row: row),
    # The provider charges again, whatever the key; each attempt has a key of its own.
    "honoured key": (Provider, "charge", lambda self, key: CHARGE(self, f"{key}-{self.asked}")),
    "same key": (attempts.Flow, "_key_of", lambda flow, name: f"{flow.attempt}-{name}"),
    # Points are not stored, so the work before them is done again.
    "points": (attempts.Flow, "_put", lambda flow, row, _, **how: PUT(flow, row, [], **how)),
    # A finished request is run again.
    "answer": (RequestRow, "is_finished", False),
}


def without_insert(patch: Patch) -> None:
    """The key is stored by a plain put, over what is there."""
    inserted = Run._inserted
    patch.setattr(RequestRow, "_userlock_always_fenced", False)

    def put(run: Run, fields: dict[str, Any]) -> Any:
        with userlock.scope(settings=userlock.Settings(fencing=False)):
            return inserted(run, fields)

    patch.setattr(Run, "_inserted", put)


def without_fence(patch: Patch) -> None:
    """A put of the row alone replaces any version of it."""
    fenced = attempts.Flow._change
    patch.setattr(RequestRow, "_userlock_always_fenced", False)

    def unfenced(flow: Any, change: Any) -> None:
        with userlock.scope(settings=userlock.Settings(fencing=False)):
            fenced(flow, change)

    patch.setattr(attempts.Flow, "_change", unfenced)


def overtaken(point: str) -> Callable[[Paid, ManualClock, MemoryStore], None]:
    """Return a scenario: an attempt is paused at a point, and another one does all of it.

    The checks of puts are off: they would notice that the lease has ended.
    """

    def run(paid: Paid, clock: ManualClock, store: MemoryStore) -> None:
        def act() -> None:
            clock.advance(3600)
            paid.send()

        paid.settings = userlock.Settings(enforcement=userlock.Enforcement.OFF)
        paid.on = once(point, act)
        paid.send()

    return run


def charged_without_a_reply(paid: Paid, clock: ManualClock, store: MemoryStore) -> None:
    """The provider charges, and its reply is lost; the client sends the request again."""
    paid.provider.lost = ConnectionError("reset")
    paid.send()
    paid.provider.lost = None
    paid.send()


def cut_off(paid: Paid, clock: ManualClock, store: MemoryStore) -> None:
    """The attempt ends after the phase; the client sends the request again."""

    def fail() -> None:
        raise userlock.UserLockError("the process ends")

    paid.on = once("after the phase", fail)
    paid.send()
    paid.send()


def inserted_late(paid: Paid, clock: ManualClock, store: MemoryStore) -> None:
    """Both have found no row, and have no lock; the one inserts when the other is done."""
    store.go_down()
    look_up = Run._look_up
    first = [True]

    def slow(run: Run) -> Any:
        row = look_up(run)
        if first:
            first.clear()
            paid.send()
        return row

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "_look_up", slow)
        paid.send()


SCENARIOS = {
    "paused after the phase": overtaken("after the phase"),
    "paused before the call": overtaken("before the call"),
    "paused after the charge": overtaken("charged"),
    "paused when it is recorded": overtaken("recorded"),
    "charged without a reply": charged_without_a_reply,
    "cut off after the phase": cut_off,
    "inserted late": inserted_late,
}
CONTROLS = [
    ("token", "paused when it is recorded"),
    ("honoured key", "charged without a reply"),
    ("same key", "charged without a reply"),
    ("same key", "paused before the call"),
    ("insert", "inserted late"),
    ("points", "cut off after the phase"),
    ("answer", "cut off after the phase"),
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_request_that_its_first_commit_stores(
    paid: Paid, clock: ManualClock, store: MemoryStore, scenario: str
) -> None:
    paid.completable = False
    SCENARIOS[scenario](paid, clock, store)
    paid.check()


@pytest.mark.parametrize(
    ("guard", "scenario"), [*((None, scenario) for scenario in SCENARIOS), *CONTROLS]
)
def test_guards(
    paid: Paid,
    clock: ManualClock,
    store: MemoryStore,
    monkeypatch: Patch,
    guard: str | None,
    scenario: str,
) -> None:
    """All of it happens once; in each control, with one guard off, it does not."""
    if guard is None:
        SCENARIOS[scenario](paid, clock, store)
        paid.check()
        return
    if guard == "insert":
        without_insert(monkeypatch)
    else:
        monkeypatch.setattr(*SIMPLE[guard])
    SCENARIOS[scenario](paid, clock, store)
    with pytest.raises((AssertionError, ValueError)):
        paid.check()


@pytest.mark.parametrize("in_a_call", [False, True])
@pytest.mark.usefixtures("flows")
def test_without_the_lock_an_attempt_is_waited_for(
    clock: ManualClock, store: MemoryStore, in_a_call: bool
) -> None:
    """Both leases are degraded: only the row tells that an attempt may be running."""
    store.go_down()
    seen: list[Any] = []
    flows = Flows(clock=clock, claim_seconds=50)

    def slow(flow: Flow) -> Any:
        return flow.external("wait", lambda key: wait(flow)) if in_a_call else wait(flow)

    def wait(flow: Flow) -> str:
        if flow.attempt == 1:
            for seconds in (1, 100):
                clock.advance(seconds)
                with userlock.scope():
                    try:
                        seen.append(flows.run(request(), slow).value)
                    except userlock.RequestRunning as error:
                        seen.append(40 < error.retry_after < 50)
        return f"attempt {flow.attempt}"

    with contextlib.suppress(userlock.FlowTakenOver):
        flows.run(request(), slow)
    assert seen == [True, "attempt 2"]
    assert flows.run(request(), slow).value == "attempt 2"


# --- the fence of the row -------------------------------------------------------------------


def points_after_a_late_record(flows: Flows, clock: ManualClock) -> list[Any]:
    """Pause an attempt in its call; return what a third one finds of the second one's call."""
    outs: list[Any] = []
    calls: list[str] = []

    def pay(flow: Flow) -> None:
        def call(key: str) -> int:
            calls.append(key)
            mine = len(calls)
            if mine == 1:
                clock.advance(3600)
                with userlock.scope(), pytest.raises(ConnectionError):
                    flows.run(request(), pay)
            return mine

        outs.append(flow.external("charge", call))
        if len(outs) == 1:
            raise ConnectionError("cut off")
        with flow.last() as end:
            end.respond(1)

    with contextlib.suppress(userlock.UserLockError):
        flows.run(request(), pay)
    clock.advance(3600)
    with userlock.scope():
        flows.run(request(), pay)
    return outs


@pytest.mark.parametrize("fenced", [True, False])
def test_what_was_recorded_is_not_replaced(
    flows: Flows, clock: ManualClock, monkeypatch: Patch, fenced: bool
) -> None:
    if not fenced:
        without_fence(monkeypatch)
    assert points_after_a_late_record(flows, clock) == [2, 2 if fenced else 1]


# --- the reaper -----------------------------------------------------------------------------


def reaped_while_it_begins(flows: Flows, clock: ManualClock) -> list[bool]:
    """Let a key be used again when the reaper has listed it; return what is left."""
    flows.run(request(), lambda flow: 1)
    clock.advance(DAY + 1)

    def begins_and_is_cut_off() -> bool:
        def cut(flow: Flow) -> None:
            raise ConnectionError

        with userlock.scope(), pytest.raises(ConnectionError):
            flows.run(request(), cut)
        return False

    flows.reap(stopped=begins_and_is_cut_off)
    return [row.is_finished for row in rows()]


@pytest.mark.parametrize("looks_again", [True, False])
def test_the_reaper_leaves_a_request_that_began_meanwhile(
    flows: Flows, clock: ManualClock, monkeypatch: Patch, looks_again: bool
) -> None:
    def blind(key: Any, now: int) -> bool:
        key.delete()
        return True

    if not looks_again:
        monkeypatch.setattr(Flows, "_remove", staticmethod(blind))
    assert reaped_while_it_begins(flows, clock) == ([False] if looks_again else [])


def test_an_index_that_is_wrong_removes_nothing(
    flows: Flows, clock: ManualClock, monkeypatch: Patch
) -> None:
    """All rows are listed to the reaper. The row itself decides."""

    def cut(flow: Flow) -> None:
        raise ConnectionError

    for number in range(3):
        with userlock.scope(), pytest.raises(ConnectionError):
            flows.run(request(key=f"{KEY}-{number}"), cut)
    flows.run(request(), lambda flow: 1)
    clock.advance(400 * DAY)
    monkeypatch.setattr(stored, "requests_before", lambda *_: [row.key for row in rows()])
    flows.reap()
    assert sum(not row.is_finished for row in rows()) == 3
