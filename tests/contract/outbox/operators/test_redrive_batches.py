"""Test that redrives go in batches, and that no row, owner or fault in one harms the others."""

from __future__ import annotations

import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.api_core.exceptions import Aborted
from google.cloud import datastore as plain_datastore
from google.cloud import ndb

import userlock
from tests.contract.outbox.operators.conftest import Shop
from tests.contract.outbox.operators.test_redrive import OWNERS, dead, redriven
from userlock.errors import CommitInDoubt
from userlock.outbox import rows
from userlock.outbox.dead_letters import DeadLetters
from userlock.outbox.rows import job_key
from userlock.testing import ManualClock
from userlock_emulator import Emulator

#: The root key of this owner does not tell its id.
LONG_OWNER = "é" * 1_000


def redrive_all(shop: Shop, **options: Any) -> list[tuple[str, bool]]:
    with shop.outbox.context():
        return list(shop.outbox.dead.redrive_all("", **{"rate": 10_000, **options}))


def run_all(shop: Shop) -> None:
    """Let the relay ask for all that is due, and deliver."""
    shop.engine.messages.clear()
    with shop.outbox.context():
        shop.outbox.relay()
    shop.deliver()


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Provide the number of rows in each transaction of a redrive."""
    found: list[int] = []
    revive = DeadLetters._revive

    def counted(self: DeadLetters, keys: Sequence[Any], *args: Any) -> Any:
        found.append(len(keys))
        return revive(self, keys, *args)

    monkeypatch.setattr(DeadLetters, "_revive", counted)
    return found


# --- batches ------------------------------------------------------------------------------------


def test_owners_and_jobs_go_together(shop: Shop, transactions: list[int]) -> None:
    calls: list[int] = []
    shop.engine.on_wake = lambda messages: calls.append(len(messages))
    shop.put_dead(OWNERS * 2)
    assert [done for _, done in redrive_all(shop)] == [True] * 40
    assert transactions == calls == [25, 15]
    assert redriven(shop) == sorted(OWNERS * 2)


@pytest.mark.parametrize(("rate", "batches"), [(0.5, [1] * 20), (50, [5] * 4)])
def test_a_batch_has_no_more_than_the_rate_allows_in_a_moment(
    shop: Shop, transactions: list[int], rate: float, batches: list[int]
) -> None:
    shop.put_dead(OWNERS)
    began = shop.clock.now()
    redrive_all(shop, rate=rate)
    assert transactions == batches
    assert shop.clock.now() - began == pytest.approx((20 - batches[-1]) / rate, abs=0.01)


def test_at_most_so_many(shop: Shop) -> None:
    shop.put_dead(OWNERS)
    for most, done in ((0, 0), (7, 7), (99, 13)):
        assert len(redrive_all(shop, most=most)) == done


def test_each_row_is_changed_under_its_owners_lock(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_meant = DeadLetters._is_meant
    holders = []

    def look(letters: DeadLetters, row: Any, *args: Any) -> bool:
        holders.append((row.owner, shop.service.holder(row.owner) is not None))
        return is_meant(letters, row, *args)

    monkeypatch.setattr(DeadLetters, "_is_meant", look)
    shop.put_dead([*OWNERS, "ann", "ann", LONG_OWNER])
    with shop.outbox.context():
        for _ in shop.outbox.dead.redrive_all("", rate=10_000):
            assert not any(shop.service.holder(owner) for owner in [*OWNERS, "ann", LONG_OWNER])
    locked = Counter(owner for owner, held in holders if held)
    assert locked == Counter({**dict.fromkeys(OWNERS, 1), "ann": 2, LONG_OWNER: 1})


@pytest.mark.parametrize("action", ["redrive_all", "purge"])
def test_the_callers_context_keeps_no_row(shop: Shop, action: str) -> None:
    """There may be a million, of a megabyte each."""
    shop.put_dead(OWNERS)
    with shop.outbox.context():
        assert len(list(getattr(shop.outbox.dead, action)(""))) == 20
        assert len(ndb.get_context().cache) == 0


# --- busy owners --------------------------------------------------------------------------------


def test_a_busy_owner_is_waited_for_once_and_last(shop: Shop) -> None:
    shop.put_dead([*["busy"] * 60, *OWNERS])
    lease = shop.service.acquire("busy", lock_timeout=3600)
    began = shop.clock.now()
    done = redrive_all(shop, busy_seconds=3)
    assert shop.clock.now() - began == pytest.approx(3, abs=0.5)
    assert [each for _, each in done] == [True] * 20 + [False] * 60
    assert redriven(shop) == OWNERS
    shop.service.release(lease)
    assert all(each for _, each in redrive_all(shop))
    assert redriven(shop) == ["busy"] * 60 + OWNERS


def test_an_owner_that_was_busy_is_tried_again(shop: Shop) -> None:
    shop.put_dead(["busy", *OWNERS])
    lease = shop.service.acquire("busy", lock_timeout=3600)
    done = []
    with shop.outbox.context():
        for key, each in shop.outbox.dead.redrive_all("", rate=10_000):
            done.append((job_key(key).root().id(), each))
            if len(done) == 10:
                shop.service.release(lease)
    assert done[-1] == ("=busy", True)
    assert redriven(shop) == ["busy", *OWNERS]


# --- malformed rows -----------------------------------------------------------------------------

#: Changed fields, or the property with all of them.
MALFORMED: dict[str, dict[str, Any]] = {
    "a time that is a text": {"died_at": "yesterday"},
    "no time": {"died_at": None},
    "no number of redrives": {"redriven": None},
    "a number that is a text": {"tries": "three"},
    "no arguments, no owner": {"arguments": None, "owner": None},
    "an owner that is a list": {"owner": ["user04"]},
    "another owner than that of its key": {"owner": "user04"},
    "a number that is no integer": {"tries": 1.5},
    "a time that no clock shows": {"staged_at": 10**400},
    "a tier that is a list": {"tier": ["a"]},
    "data that are a number": {"data": 5},
    "data that are too deep": {"data": b"[" * 100_000},
    "data that are no JSON": {"data": b"{"},
    "data that are no object": {"data": b"[]"},
    "no data": {"data": None},
    "an empty entity": {},
}


def damage(client: ndb.Client, healthy: Any, key: Any, how: str) -> None:
    """Store a malformed row, under its own key or another one."""
    plain = plain_datastore.Client(project=client.project)
    stored = plain.get(healthy._key)
    unindexed = tuple(stored.exclude_from_indexes)
    entity = plain_datastore.Entity(key._key, exclude_from_indexes=unindexed)
    changes = MALFORMED[how]
    if changes and "data" not in changes:
        data, _, payload = stored["data"].partition(b"\n")
        given = {"arguments": payload, **changes}
        fields = {each: given[each] for each in given.keys() - {"arguments"}}
        data = json.dumps(json.loads(data) | fields).encode()
        changes = {"data": data if given["arguments"] is None else data + b"\n" + payload}
    indexes = {each: stored[each] for each in ("write_id", "due", "standing", "queued", "dead")}
    entity.update({**stored, **changes} if changes else indexes)
    plain.put(entity)


@pytest.fixture(
    params=[*((each, LONG_OWNER) for each in MALFORMED), ("an empty entity", OWNERS[3])],
    ids=lambda param: f"{param[0]}, {len(param[1])}",
)
def malformed(request: pytest.FixtureRequest, shop: Shop, ndb_client: ndb.Client) -> Any:
    """Provide the key of a malformed row among those of ten owners, one of them its own."""
    changed, owner = request.param
    shop.put_dead([*OWNERS[:9], LONG_OWNER])
    (row,) = [row for row in shop.rows() if row.owner == owner]
    with shop.outbox.context():
        key = ndb.Key(row.key.kind(), "00" * 16, parent=row.key.root())
    damage(ndb_client, row.key, key, changed)
    return key


def test_a_malformed_row_stops_no_other(
    shop: Shop, malformed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with shop.outbox.context():
        assert len([each.call for each in shop.outbox.dead.list() if each.stamp]) == 11
        for _ in range(2):
            list(shop.outbox.dead.redrive_all("", rate=10_000))
            assert [row.redriven for row in shop.rows() if row.key != malformed] == [1] * 10
        assert f"job {malformed.id()} of" in caplog.text
        assert caplog.text.count("its row is malformed") == 2
        shop.put_dead(OWNERS[:9])
        assert len(list(shop.outbox.dead.purge())) >= 9


@pytest.mark.parametrize("how", MALFORMED)
def test_nor_does_one_that_waits(
    shop: Shop, ndb_client: ndb.Client, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """It is logged once, and has a page of its own, to which that of another job links."""
    keys = [shop.stage(shop.pay, "ann") for _ in range(2)]
    with shop.outbox.context():
        key = job_key(keys[0])
        damage(ndb_client, key, key, how)
        shop.engine.messages.clear()
        relay = shop.outbox._new_relay()
        assert [relay.run_once().woken for _ in range(2)] == [1, 0]
    assert caplog.text.count("its row is malformed") == 1
    pages = [shop.web.get(f"/userlock/outbox{each}") for each in ("", f"/{keys[0]}", f"/{keys[1]}")]
    for text, page in zip(("Its row is", "Its row is", "may hold it up"), pages, strict=True):
        assert text in page.text
    assert shop.web.get("/userlock/outbox?owner=ann").text.count(keys[0]) >= 2


def test_the_log_hides_owners(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    userlock.configure(show_ids="masked")
    shop.put_dead(["zoe.marker"])
    (row,) = shop.rows()
    with shop.outbox.context(), caplog.at_level(logging.DEBUG):
        rows.report(row.key, "redriven", "ValueError")
    assert "was not redriven" in caplog.text
    assert "zoe" not in caplog.text


def test_jobs_too_large_for_one_transaction(shop: Shop) -> None:
    """One transaction takes ten megabytes."""
    keys = [shop.stage(shop.pay, f"user{number}", "x" * 850_000) for number in range(13)]
    shop.error = RuntimeError("no")
    shop.deliver()
    shop.error = None
    assert sorted(redrive_all(shop)) == sorted((key, True) for key in keys)
    assert [row.redriven for row in shop.rows()] == [1] * 13


# --- conflicts and lost replies -----------------------------------------------------------------


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("fault", ["abort", "drop_reply"])
def test_a_fault_at_the_commit_of_a_batch(shop: Shop, datastore: Emulator, fault: str) -> None:
    shop.put_dead(OWNERS)
    with getattr(datastore.faults, fault)(rpc="Commit") as planted:
        done = redrive_all(shop)
        assert planted.hits == 1
    assert [each for _, each in done] == [True] * 20
    assert (redriven(shop), dead(shop)) == (OWNERS, [])
    assert len({each.key for each in shop.engine.messages}) == len(shop.engine.messages) == 20


@pytest.mark.usefixtures("quick_retries")
def test_a_commit_in_doubt_ends_it_and_none_is_redriven_twice(
    shop: Shop, datastore: Emulator
) -> None:
    shop.put_dead(OWNERS)
    with (
        datastore.faults.drop_reply(),
        datastore.faults.unavailable(None, rpc="Lookup", skip=1),
        pytest.raises(CommitInDoubt),
    ):
        redrive_all(shop)
    redrive_all(shop)
    assert (redriven(shop), dead(shop)) == (OWNERS, [])
    run_all(shop)
    assert sorted(owner for owner, *_ in shop.ran) == OWNERS


@pytest.mark.usefixtures("quick_retries")
def test_an_owner_in_conflict_all_the_time_stops_no_other(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    revive = DeadLetters._revive

    def conflict(self: DeadLetters, keys: Sequence[Any], *args: Any) -> Any:
        if any(key.root().id() == "=user07" for key in keys):
            raise Aborted("too much contention on these datastore entities")
        return revive(self, keys, *args)

    shop.put_dead(OWNERS)
    with monkeypatch.context() as patch:
        patch.setattr(DeadLetters, "_revive", conflict)
        done = redrive_all(shop)
    assert sum(each for _, each in done) == 19
    assert (len(done), done[-1][1]) == (20, False)
    assert dead(shop) == ["user07"]
    redrive_all(shop)
    assert redriven(shop) == OWNERS


def test_a_purge_leaves_a_row_in_conflict(shop: Shop, datastore: Emulator) -> None:
    shop.put_dead(OWNERS)
    with datastore.faults.abort(4, kind="UserLockJob"), shop.outbox.context():  # with its retries
        assert len(list(shop.outbox.dead.purge())) == 19
    assert len(dead(shop)) == 1


@pytest.mark.usefixtures("quick_retries")
def test_datastore_is_down(shop: Shop, datastore: Emulator) -> None:
    """It ends, and does not take each row for malformed."""
    shop.put_dead(OWNERS)
    with (
        datastore.faults.unavailable(None, rpc="Lookup"),
        pytest.raises(Exception, match="retries exceeded"),
    ):
        redrive_all(shop)
    assert dead(shop) == OWNERS


# --- two at once, and ends midway ---------------------------------------------------------------


@pytest.mark.parametrize("looks", [True, False], ids=["", "the control: without a look"])
def test_two_at_once_redrive_none_twice(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """One has read all keys, and is behind its first batch, while another redrives all."""
    if not looks:
        monkeypatch.setattr(DeadLetters, "_is_meant", lambda _, row, *others: row is not None)
    shop.put_dead(OWNERS)
    with shop.outbox.context():
        first = shop.outbox.dead.redrive_all("", rate=50)
        next(first)
        redrive_all(shop)
        list(first)
    assert (redriven(shop) == OWNERS) is looks


def test_an_end_between_commit_and_messages_loses_no_job(shop: Shop) -> None:
    """The relay asks for them, at its next round."""
    calls = itertools.count(1)

    def end(_: object) -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt

    shop.put_dead(OWNERS)
    shop.engine.on_wake = end
    with pytest.raises(KeyboardInterrupt):
        redrive_all(shop, rate=50)
    assert len(redriven(shop)) == 10
    redrive_all(shop)
    assert redriven(shop) == OWNERS
    assert len(shop.engine.messages) == 15, "those of one batch are missing"
    run_all(shop)
    assert sorted(owner for owner, *_ in shop.ran) == OWNERS, "each has run once"
    assert shop.rows() == []


# --- jobs behind a dead one ---------------------------------------------------------------------


def held_up(shop: Shop, clock: ManualClock, number: int = 5) -> str:
    """Stage jobs behind a dead one of their owner. Their messages come, and go for nothing."""
    blocker = shop.kill(shop.close_books, "ann", 0)
    for index in range(number):
        shop.stage(shop.pay, "ann", index)
    shop.deliver()
    clock.advance(1)
    assert shop.engine.messages == []
    shop.ran.clear()
    return blocker


#: How a dead job may go, by its key. The caller of the third ends the purge of many.
WAYS: dict[str, Callable[[Shop, str], bool]] = {
    "deleted": lambda shop, key: shop.outbox.dead.delete(key),
    "purged by cause": lambda shop, key: list(shop.outbox.dead.purge("close_books")) == [key],
    "first of many": lambda shop, key: next(shop.outbox.dead.purge()) == key,
    "redriven": lambda shop, key: shop.outbox.dead.redrive(key),
    "redriven by cause": lambda shop, key: (
        list(shop.outbox.dead.redrive_all("close_books")) == [(key, True)]
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_jobs_that_a_dead_one_held_up_go_on_at_once(shop: Shop, way: str) -> None:
    names: list[str] = []
    shop.engine.on_wake = lambda messages: names.extend(each.name for each in messages)
    blocker = held_up(shop, shop.clock)
    shop.put_dead(["bob", "eve"])
    with shop.outbox.context():
        assert WAYS[way](shop, blocker)
    assert len(shop.engine.messages) == 1, "one is enough"
    assert len(names) == len(set(names)), "an engine may still know the earlier names"
    shop.deliver()
    later = [("ann", index) for index in range(5)]
    assert shop.ran in (later, [("ann", 0), *later])
    assert "ann" not in {row.owner for row in shop.rows()}


def test_a_purge_sends_no_needless_message(shop: Shop) -> None:
    shop.put_dead(["ann", "bob"])
    key = shop.kill(shop.close_books, "eve")
    shop.stage(shop.pay, "ann", delay=30)
    shop.engine.messages.clear()
    with shop.outbox.context():
        list(shop.outbox.dead.purge("pay"))
        assert shop.outbox.dead.delete(key)
    assert shop.engine.messages == []


def test_a_purge_whose_message_fails_is_done(shop: Shop, datastore: Emulator) -> None:
    blocker = held_up(shop, shop.clock)
    with (
        shop.outbox.context(),
        datastore.faults.deadline_exceeded(None, rpc="RunQuery"),
    ):
        assert shop.outbox.dead.delete(blocker)
    assert shop.engine.messages == []
    shop.clock.advance(60)
    run_all(shop)
    assert len(shop.ran) == 5, "the relay has asked"
