"""The contract's third part: times to live, and the grace that follows them.

All that has to wait for time to pass is looked at in one run: a real server costs its seconds once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pytest

from userlock.lock.store import GRACE_SECONDS, LeaseStore, Stored
from userlock.testing.contract.base import StoreContract, created, found


@dataclasses.dataclass
class _Watched:
    """A record under watch: its time to live began at `began`, at the earliest.

    `version`: as it was given last. `states`: "live", "lapsed", "gone", as they were seen.
    """

    lock_id: str
    began: float
    ttl: float
    look: Callable[[], Stored | None]
    version: object
    states: list[str] = dataclasses.field(default_factory=list)


class TimeContract(StoreContract):
    """The time to live of records. About ten seconds with a real server."""

    def test_records_lapse_on_time_and_go_after_the_grace(self, store: LeaseStore) -> None:
        """Never early, by whatever clock; and not much later."""
        watched = self._watched(store)
        version = created(store.create("prolonged", b"first", 1))
        created(store.swap("prolonged", version, b"next", 60))
        most = 1 + GRACE_SECONDS + self.late_seconds

        def all_gone() -> bool:
            for record in watched:
                self._observe(store, record)
            return all(record.states[-1] == "gone" for record in watched)

        self.eventually(store, "all records are gone", all_gone, within=most + 1)
        for record in watched:
            if self.tells_lapsed:
                assert "lapsed" in record.states, f"{record.lock_id}: never said to have lapsed"
            assert store.swap(record.lock_id, record.version, b"next", 60) is None
            assert store.remove(record.lock_id, record.version) is False
            assert store.append(record.lock_id, b"\nline") is None
            created(store.create(record.lock_id, b"second", 60))
            stored = found(store.read(record.lock_id))
            assert (stored.record, stored.lapsed) == (b"second", False)
        stored = found(store.read("prolonged"))
        assert (stored.record, stored.lapsed) == (b"next", False), "swap begins a new time to live"

    def test_a_lapsed_record_can_still_be_changed(self, store: LeaseStore) -> None:
        """By its version, as ever; but nobody passes those who wait by `create`."""
        if not self.tells_lapsed:
            pytest.skip("the store cannot tell how long a record has still to live")
        lock_ids = ("swapped", "removed", "created", "appended")
        versions = {lock_id: created(store.create(lock_id, b"first", 0.2)) for lock_id in lock_ids}

        def all_lapsed() -> bool:
            return all(found(store.read(lock_id)).lapsed for lock_id in lock_ids)

        self.eventually(store, "all lapse", all_lapsed, within=0.2 + self.late_seconds)

        assert store.create("created", b"second", 60) is None, "create passed those who wait"
        stored = found(store.read("created"))
        assert (stored.record, stored.lapsed) == (b"first", True)

        stored = found(store.append("appended", b"\nline"))
        assert (stored.record, stored.lapsed) == (b"first\nline", True), "append gave it new life"
        assert store.swap("appended", versions["appended"], b"next", 60) is None

        version = store.swap("swapped", versions["swapped"], b"next", 60)
        assert version is not None, "swap refused a lapsed record of that very version"
        stored = found(store.read("swapped"))
        assert (stored.record, stored.lapsed) == (b"next", False)
        assert store.remove("swapped", version) is True

        assert store.remove("removed", versions["removed"]) is True
        assert store.read("removed") is None
        created(store.create("removed", b"second", 60))
        assert found(store.read("removed")).lapsed is False

    def _watched(self, store: LeaseStore) -> list[_Watched]:
        spent = created(store.create("refused", b"spent", 60))
        long = created(store.create("shortened", b"first", 60))

        def refuse() -> object:
            """A refused change does not change the time to live either."""
            version = created(store.swap("refused", spent, b"first", 1))
            assert store.create("refused", b"second", 60) is None
            assert store.swap("refused", spent, b"second", 60) is None
            assert store.remove("refused", spent) is False
            return version

        begins: dict[str, Callable[[], object]] = {
            "plain": lambda: store.create("plain", b"first", 1),
            # Not rounded down to 0, which memcached reads as for ever.
            "brief": lambda: store.create("brief", b"first", 0.001),
            "appended to": lambda: store.create("appended to", b"first", 1),
            "refused": refuse,
            "shortened": lambda: store.swap("shortened", long, b"next", 1),
        }
        looks: dict[str, Callable[[], Stored | None]] = {
            # Lines that are added all the time must not keep it alive, nor end it.
            "appended to": lambda: store.append("appended to", b"\n."),
            "shortened": lambda: store.read("shortened", hurry=True),
        }
        watched = []
        for lock_id, begin in begins.items():
            began, ttl = self.now(store), 0.001 if lock_id == "brief" else 1
            look = looks.get(lock_id, functools.partial(store.read, lock_id))
            watched.append(_Watched(lock_id, began, ttl, look, created(begin())))
        return watched

    def _observe(self, store: LeaseStore, record: _Watched) -> None:
        """Look at a record, and judge whether it may be as it is.

        It was so at some moment between asking and the answer: too early is judged by the latter,
        too late by the former.
        """
        asked = self.now(store) - record.began
        stored = record.look()
        answered = self.now(store) - record.began
        state = "gone" if stored is None else "lapsed" if stored.lapsed else "live"
        left = None if stored is None else stored.seconds_left
        assert left is None or (left <= 0) is (state == "lapsed"), f"{state}, with {left} s left"
        if not record.states or record.states[-1] != state:
            record.states.append(state)
        what = f"{record.lock_id}, of {record.ttl:g} s,"
        stays = record.ttl + (GRACE_SECONDS if self.tells_lapsed else 0)
        order = [name for name in ("live", "lapsed", "gone") if name in record.states]
        assert record.states == order, f"{what} came back to life: {record.states}"
        if state == "live":
            assert asked <= record.ttl + self.late_seconds, f"{what} lives after {asked:.3f} s"
        elif state == "lapsed":
            assert self.tells_lapsed, f"{what} lapsed, where the store cannot tell"
            assert answered >= record.ttl, f"{what} lapsed after {answered:.3f} s"
            assert asked <= stays + self.late_seconds, f"{what} is there after {asked:.3f} s"
        else:
            assert answered >= stays, f"{what} is gone after {answered:.3f} s"
