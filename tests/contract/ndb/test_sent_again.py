"""A write that only its lock protects is not sent again after the lease.

A                                    Datastore            B
delete, never read ────────────────▶ unavailable
(the lease runs out)                                      lock, put
                                     A's turn: not sent again
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.constraints.models import Campaign, campaign
from tests.contract.ndb.actions import Elsewhere, change, forget_reads, stored
from tests.contract.ndb.models import Learner
from tests.contract.ndb.servers import Wire
from userlock.ndb.writes import Write
from userlock.testing import ManualClock
from userlock_emulator import Emulator

pytestmark = pytest.mark.usefixtures("quick_retries")

Lapse = Callable[[Any], None]


class Overwritten(Learner):
    """Put without a read."""

    _overwrites = True

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedOverwritten"


@pytest.fixture
def lapse(clock: ManualClock, elsewhere: Elsewhere, ndb_client: ndb.Client) -> Lapse:
    """Let the lease end, and have another request write, while the first commit is under way."""

    def begin(key: Any) -> None:
        class Lapsing(Wire):
            commits = 0

            def sent(self, name: str, request: Any) -> Any:
                self.commits += name == "commit"
                if name == "commit" and self.commits == 1:
                    self.commits = 2  # not for the other request's
                    clock.advance(61)
                    elsewhere(lambda: change(key, 100))
                return super().sent(name, request)

        Lapsing(ndb_client)

    return begin


def delete_in_a_transaction(key: Any) -> None:
    ndb.transaction(key.delete)


@pytest.mark.parametrize(
    ("fault", "delete", "error", "cause"),
    [
        ("abort", ndb.Key.delete, userlock.LeaseRanOut, object),
        ("unavailable", ndb.Key.delete, userlock.CommitInDoubt, userlock.LeaseRanOut),
        ("unavailable", delete_in_a_transaction, userlock.CommitInDoubt, object),
    ],
    ids=["refused", "in doubt", "in a transaction"],
)
def test_a_delete_without_a_read(
    key: Any,
    lapse: Lapse,
    datastore: Emulator,
    fault: str,
    delete: Callable[[Any], object],
    error: type[Exception],
    cause: type[object],
) -> None:
    """One that may have been applied says so. No transaction protects what it has not read."""
    getattr(datastore.faults, fault)(1, rpc="Commit", skip=1)
    with userlock.global_lock("ann"):
        lapse(key)
        with pytest.raises(error) as caught:
            delete(key)
    assert isinstance(caught.value.__cause__, cause)
    assert stored(key) == (100, None)


def test_a_put_without_a_read(context: Any, lapse: Lapse, datastore: Emulator) -> None:
    key = ndb.Key(Overwritten, "ann")
    with userlock.global_lock("ann"):
        Overwritten(key=key).put()
    forget_reads()
    datastore.faults.abort(1, rpc="Commit", skip=1)
    with userlock.global_lock("ann"):
        lapse(key)
        with pytest.raises(userlock.LeaseRanOut):
            Overwritten(key=key, points=1).put()
    assert stored(key) == (100, None)


def test_a_delete_of_an_entity_with_claims(
    context: Any, clock: ManualClock, datastore: Emulator
) -> None:
    """Within one request of ndb, the transaction with the claims is tried again."""
    with userlock.global_lock("ann"):
        key = campaign("Summer").put()
    forget_reads()

    class Lapsing(Wire):
        def sent(self, name: str, request: Any) -> Any:
            if name == "commit":
                clock.advance(61)
            return super().sent(name, request)

    datastore.faults.abort(1, rpc="Commit")
    with userlock.global_lock("ann"):
        Lapsing(context.client)
        with pytest.raises(userlock.LeaseRanOut):
            key.delete()
    assert Campaign.query().count() == 1


@pytest.mark.parametrize("enforcement", ["raise", "log", "off"])
def test_without_the_check_an_update_is_lost(
    key: Any, lapse: Lapse, datastore: Emulator, monkeypatch: pytest.MonkeyPatch, enforcement: str
) -> None:
    """The negative control. Nor is it checked where violations are not raised."""
    if enforcement == "raise":
        monkeypatch.setattr(Write, "guarded", True)
    userlock.configure(enforcement=enforcement)
    datastore.faults.abort(1, rpc="Commit", skip=1)
    with userlock.global_lock("ann"):
        lapse(key)
        key.delete()
    assert stored(key) is None
