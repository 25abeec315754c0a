"""The crash points of a paid request: replies that are lost, leases that end, others that act.

`tests/faults/idempotency` kills processes at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from google.cloud import ndb

from tests.contract.conftest import EACH_MODE
from tests.contract.idempotency.conftest import CardDeclined, Provider, request
from tests.contract.idempotency.paid import Paid, once
from userlock.errors import FlowTakenOver
from userlock.idempotency import Flows
from userlock.ndb.capabilities import honours_base_version
from userlock.stores import MemoryStore
from userlock.testing import ManualClock
from userlock_emulator import Emulator

DAY = 24 * 3600
#: The commits of an attempt: those of one that is refused, and of one that pays.
REFUSED = ("the key", "the phase", "before the call", "the refusal")
PAID = ("the key", "the phase", "before the call", "the reply", "the answer")


@pytest.fixture
def paid(flows: Flows, ndb_client: ndb.Client, provider: Provider) -> Iterator[Paid]:
    app = Paid(flows, ndb_client, provider)
    assert honours_base_version(ndb_client), "the server is asked before any fault is planted"
    yield app
    app.outbox.close()


# --- replies --------------------------------------------------------------------------------


@EACH_MODE
@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize(
    "fault",
    [
        "reply lost",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("all replies lost", "not arrived")
        ),
    ],
)
@pytest.mark.parametrize(
    ("refused", "completable", "commit"),
    [
        pytest.param(refused, completable, number, id=f"{kind}: {name}")
        for kind, refused, completable, names in (
            ("refused", True, True, REFUSED),
            ("paid", False, True, PAID),
            ("stored by its first commit", False, False, PAID[1:]),
        )
        for number, name in enumerate(names)
    ],
)
def test_a_commit_without_a_reply(
    paid: Paid, datastore: Emulator, refused: bool, completable: bool, commit: int, fault: str
) -> None:
    """Applied or not, known to the attempt or not: the client sends it again."""
    paid.refused, paid.completable = refused, completable
    paid.provider.trouble = CardDeclined("too poor") if refused else None
    fail = datastore.faults.drop_reply if fault != "not arrived" else datastore.faults.unavailable
    planted = fail(rpc="Commit", skip=commit, count=1 if fault == "reply lost" else 4)
    paid.send()
    assert planted.hits, "the commit met its fault"
    if fault == "reply lost":
        assert not paid.errors, "a lost reply alone is no error"
    paid.send()
    paid.send()
    paid.check()


# --- leases, and others ---------------------------------------------------------------------

OTHERS: dict[str, Callable[[Paid], None]] = {
    "client": Paid.send,
    "completer": Paid.complete,
    "reaper": Paid.reap,
}


@pytest.mark.parametrize(
    ("other", "lock"), [*((other, "lost") for other in OTHERS), ("client", "down")]
)
@pytest.mark.parametrize("point", Paid.POINTS)
def test_another_one_acts_at_each_point(
    paid: Paid, clock: ManualClock, store: MemoryStore, point: str, other: str, lock: str
) -> None:
    """The attempt is paused there for days; then it goes on."""
    if lock == "down":
        store.go_down()

    def act() -> None:
        clock.advance(30 * DAY)
        OTHERS[other](paid)

    paid.on = once(point, act)
    paid.send()
    if other != "reaper":
        assert any(isinstance(each, FlowTakenOver) for each in paid.errors) or (
            point in ("after the phase", "begun", "recorded") and paid.errors
        ), "the paused attempt is told"
    paid.send()
    paid.check()


class Died(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("resumed_by", ["client", "completer"])
@pytest.mark.parametrize("point", Paid.POINTS)
def test_a_process_that_ends(paid: Paid, clock: ManualClock, point: str, resumed_by: str) -> None:
    def die() -> None:
        raise Died

    paid.on = once(point, die)
    with pytest.raises(Died):
        paid.send()
    clock.advance(3600)
    OTHERS["reaper"](paid)
    OTHERS[resumed_by](paid)
    paid.send()
    paid.check()


@pytest.mark.parametrize("point", Paid.POINTS)
def test_the_completer_is_overtaken_by_the_client(
    paid: Paid, clock: ManualClock, point: str
) -> None:
    def fail() -> None:
        raise ConnectionError

    paid.on = once("begun", fail)
    with pytest.raises(ConnectionError):
        paid.flows.run(request())
    clock.advance(3600)

    def act() -> None:
        clock.advance(3600)
        paid.send()

    paid.on = once(point, act)
    paid.complete()
    assert len(paid.answers) == 1
    paid.check()
