"""Lost replies, aborts, and rows that other programs have left."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
from tests.contract.constraints.models import (
    Campaign,
    MarkedCampaign,
    Owner,
    Seat,
    campaign,
    check_claims,
    claims,
    put,
)
from tests.contract.ndb.servers import Wire
from userlock.constraints import claims as claim_rows
from userlock.constraints.claims import ClaimRow
from userlock.ndb import commits
from userlock.testing import allow_unlocked
from userlock_emulator import Emulator

pytestmark = pytest.mark.usefixtures("context", "quick_retries")


@pytest.mark.parametrize(
    ("in_transaction", "model", "count"),
    [
        *((False, Campaign, 1), (True, Campaign, 1)),
        *((False, Campaign, 3), (True, MarkedCampaign, 3)),
    ],
)
@pytest.mark.parametrize("what", ["creation", "rename", "delete"])
def test_lost_replies(
    datastore: Emulator, in_transaction: bool, model: Any, count: int, what: str
) -> None:
    one = campaign("Summer", model=model) if what == "creation" else put("Summer", model=model)
    ndb.get_context().clear_cache()

    def change() -> None:
        if what == "creation":
            one.put()
            return
        found = one.key.get()
        if what == "delete":
            found.key.delete()
        else:
            found.title = "Winter"
            found.put()

    with userlock.global_lock("ann"), datastore.faults.drop_reply(count, kind=claim_rows.KIND):
        if in_transaction:
            ndb.transaction(change)
        else:
            change()
    check_claims(model)
    titles = {"creation": ["Summer"], "rename": ["Winter"], "delete": []}[what]
    assert [each.title for each in model.query()] == titles
    assert len(claims()) == len(titles)


class TestLostRepliesOfBatches:
    """Each entity gets its own result, whichever commit of the batch was answered."""

    def test_of_a_creation_beside_a_change(self, datastore: Emulator) -> None:
        old = put("Winter")
        old.points = 5
        new = campaign("Summer")
        datastore.faults.drop_reply(3, kind=claim_rows.KIND)
        with userlock.global_lock("ann"), allow_unlocked("it was read before"):
            keys = ndb.put_multi([new, old])
        assert keys == [new.key, old.key]
        assert new.key.get(use_cache=False).title == "Summer"
        assert old.key.get(use_cache=False).points == 5
        check_claims(Campaign)

    @pytest.mark.parametrize("replies", [1, 3])
    def test_of_several_commits(self, datastore: Emulator, replies: int) -> None:
        many = [campaign(f"Number {number}") for number in range(commits._MOST_CLAIMING + 1)]
        datastore.faults.drop_reply(replies, kind=claim_rows.KIND)
        with userlock.global_lock("ann"):
            keys = ndb.put_multi(many)
        assert keys == [each.key for each in many]
        found = ndb.get_multi(keys, use_cache=False)
        assert [each.title for each in found] == [each.title for each in many]
        check_claims(Campaign)

    @pytest.mark.parametrize("replies", [1, 3])
    def test_what_proves_one_proves_the_others(self, datastore: Emulator, replies: int) -> None:
        """An archived entity has no row that would tell."""
        old, new = put("Winter"), campaign("Summer")
        with userlock.global_lock("ann"):
            old = old.key.get(use_cache=False)
            old.archived = True
            datastore.faults.drop_reply(replies, kind=claim_rows.KIND)
            ndb.put_multi([old, new])
        assert old.key.get(use_cache=False).archived
        check_claims(Campaign)


class TestRefusedCommits:
    """A commit that is refused leaves no transaction behind, whose locks others wait for."""

    def too_large(self, title: str) -> Any:
        return campaign(title, note="x" * 1_100_000)

    def test_the_next_put_goes_through(self, wire: Wire) -> None:
        with userlock.global_lock("ann"):
            large = self.too_large("Summer")
            with pytest.raises(google_errors.InvalidArgument):
                large.put()
            large.note = ""
            large.put()
        assert wire.names.count("rollback") == 1
        check_claims(Campaign)

    def test_of_a_batch_the_others_go_through(self) -> None:
        with userlock.global_lock("ann"):
            many = [campaign("Spring"), self.too_large("Summer"), campaign("Autumn")]
            futures = ndb.put_multi_async(many)
            errors = [future.exception() for future in futures if future.wait() is None]
        assert [error is None for error in errors] == [True, False, True]
        check_claims(Campaign)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(
            [("drop_reply", 1, "Commit", 0), ("unavailable", 3, "Lookup", 1)], id="landed"
        ),
        pytest.param(
            [("drop_reply", 1, "Commit", 0), ("unavailable", 3, "Commit", 0)], id="in doubt"
        ),
        pytest.param([("unavailable", 3, "Lookup", 1)], id="no holder"),
        pytest.param(
            [("unavailable", 3, "Lookup", 1), ("unavailable", 2, "Rollback", 0)], id="rolled back"
        ),
    ],
)
def test_its_own_transactions_end(
    datastore: Emulator, faults: list[tuple[str, int, str, int]]
) -> None:
    """Also one in which it finds that it has landed before, or whose second look-up fails, or whose
    rollback at first."""
    put("Summer")
    one = put("Winter")
    with userlock.global_lock("ann"):
        one = one.key.get(use_cache=False)
        lost = faults[0][0] == "drop_reply"
        one.title = "Spring" if lost else "Summer"
        for fault, count, rpc, skip in faults:
            getattr(datastore.faults, fault)(count, rpc=rpc, skip=skip)
        with contextlib.nullcontext() if lost else pytest.raises(google_errors.RetryError):
            one.put()
    with urllib.request.urlopen(f"{datastore.viewer_url}transactions?format=json") as answer:  # noqa: S310
        assert json.load(answer)["transactions"] == []
    check_claims(Campaign)


@pytest.mark.parametrize("model", [Campaign, MarkedCampaign])
def test_a_lost_reply_to_a_release(datastore: Emulator, model: Any) -> None:
    """An archived entity has no row: without a write id, nothing tells."""
    one = put("Summer", model=model)
    with userlock.global_lock("ann"):
        one = one.key.get(use_cache=False)
        one.archived = True
        datastore.faults.drop_reply(kind=claim_rows.KIND)
        if model is MarkedCampaign:
            one.put()
        else:
            with pytest.raises(userlock.StaleWriteError) as caught:
                one.put()
            assert caught.value.may_have_landed
    check_claims(model)


@pytest.mark.parametrize("rpc", ["Lookup", "Commit", "AllocateIds", "Rollback"])
@pytest.mark.parametrize("kind", ["abort", "unavailable"])
def test_other_failures_end_well(datastore: Emulator, rpc: str, kind: str) -> None:
    put("Summer")
    getattr(datastore.faults, kind)(2, rpc=rpc)
    with userlock.global_lock("ann"):
        with pytest.raises(userlock.NotUnique):
            campaign("Summer").put()
        campaign("Winter").put()
    check_claims(Campaign)


def test_when_datastore_stays_away_nothing_is_stored(datastore: Emulator) -> None:
    with userlock.global_lock("ann"):
        datastore.faults.unavailable(None, rpc="Commit")
        with pytest.raises(google_errors.RetryError):
            campaign("Summer").put()
        datastore.faults.clear()
    assert claims() == {}
    assert Campaign.query().count() == 0


@pytest.mark.parametrize(
    ("holder", "in_transaction"),
    [*((holder, False) for holder in ("gone", "another", "none")), ("gone", True)],
)
def test_a_row_that_its_holder_does_not_list_is_void(holder: str, in_transaction: bool) -> None:
    """Another program has left it."""
    other = put("Winter").key
    (key,) = put("Summer", id="gone").userlock_claims
    with userlock.global_lock("ann"):
        ndb.Key(Owner, "ann", Campaign, "gone").delete()
        gone = ndb.Key(Owner, "ann", Campaign, "gone")
        held = {"gone": gone, "another": other, "none": None}[holder]
        row = ClaimRow(key=key, holder=held, constraint="TestedCampaign.title")
        ndb.transaction(row.put)
        one = campaign("Summer")
        if in_transaction:
            ndb.transaction(one.put)
        else:
            one.put()
    check_claims(Campaign)


def test_a_row_of_another_is_left_alone() -> None:
    """Another program has restored an old state of an entity."""
    first, second = put("Summer"), put("Winter")
    (row,) = first.userlock_claims

    @ndb.transactional()
    def write() -> None:
        found = row.get()
        found.holder = second.key
        found.put()

    write()
    with userlock.global_lock("ann"):
        first.key.delete()
    assert ndb.Key(urlsafe=row.urlsafe()).get(use_cache=False) is not None


def test_round_trips(wire: Wire) -> None:
    """A claim costs a look-up; a put without a change of claims costs nothing."""

    def counted(work: Callable[[], Any]) -> list[str]:
        before = len(wire.rpcs)
        work()
        return wire.names[before:]

    with userlock.global_lock("ann"):
        parent = ndb.Key(Owner, "ann")
        one = Campaign(id="x", parent=parent, title="Summer")
        assert counted(one.put) == ["lookup", "commit"]
        assert counted(campaign("Spring").put) == ["allocate_ids", "lookup", "commit"]
        one.points += 1
        assert counted(one.put) == ["commit"]
        one.title = "Winter"
        assert counted(one.put) == ["lookup", "commit"]
        one.title = "WINTER"
        assert counted(one.put) == ["commit"]
        assert counted(one.key.delete) == ["lookup", "lookup", "commit"]
        archived = Campaign(id="y", parent=parent, title="Summer", archived=True)
        assert counted(archived.put) == ["commit"]

        def in_transaction() -> None:
            found = ndb.Key(Owner, "ann", Campaign, "y").get()
            found.archived = False
            found.put()

        assert counted(lambda: ndb.transaction(in_transaction)) == ["lookup", "lookup", "commit"]


def test_a_batch_is_halved(monkeypatch: pytest.MonkeyPatch, wire: Wire) -> None:
    monkeypatch.setattr(commits, "_MOST_CLAIMING", 4)
    ndb.put_multi([Seat(id=f"s{number}", row="A", number=number) for number in range(10)])
    assert wire.names.count("commit") == 3
    check_claims(Seat)
