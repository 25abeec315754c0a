"""The contract's third part: times to live, and the grace that follows them.

Everything that has to wait for time to pass is looked at in the same run, so
that a real server costs the seconds of one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from userlock.lock.store import GRACE_SECONDS, LeaseStore, Stored
from userlock.testing.contract.base import StoreContract, created, found


@dataclasses.dataclass
class _Watched:
    """A record under watch.

    Attributes:
        lock_id: whose.
        began: when its time to live began, at the earliest.
        ttl: its time to live, in seconds.
        look: reads it.
        version: as it was given last.
        states: "live", "lapsed", "gone", as they were seen.
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
        watched = [
            self._plain(store),
            self._brief(store),
            self._appended_to(store),
            self._refused(store),
            self._shortened(store),
        ]
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

        self.eventually(
            store, "all records have lapsed", all_lapsed, within=0.2 + self.late_seconds
        )

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

    # --- records to watch -------------------------------------------------------------------

    def _plain(self, store: LeaseStore) -> _Watched:
        began = self.now(store)
        version = created(store.create("plain", b"first", 1))
        return _Watched("plain", began, 1, lambda: store.read("plain"), version)

    def _brief(self, store: LeaseStore) -> _Watched:
        """A millisecond must not be rounded down to 0, which memcached reads as for ever."""
        began = self.now(store)
        version = created(store.create("brief", b"first", 0.001))
        return _Watched("brief", began, 0.001, lambda: store.read("brief"), version)

    def _appended_to(self, store: LeaseStore) -> _Watched:
        """Lines are added all the time: that must not keep it alive, nor end it."""
        began = self.now(store)
        version = created(store.create("appended to", b"first", 1))
        return _Watched(
            "appended to", began, 1, lambda: store.append("appended to", b"\n."), version
        )

    def _refused(self, store: LeaseStore) -> _Watched:
        """A refused change does not change the time to live either."""
        spent = created(store.create("refused", b"spent", 60))
        began = self.now(store)
        version = created(store.swap("refused", spent, b"first", 1))
        assert store.create("refused", b"second", 60) is None
        assert store.swap("refused", spent, b"second", 60) is None
        assert store.remove("refused", spent) is False
        return _Watched("refused", began, 1, lambda: store.read("refused"), version)

    def _shortened(self, store: LeaseStore) -> _Watched:
        version = created(store.create("shortened", b"first", 60))
        began = self.now(store)
        version = created(store.swap("shortened", version, b"next", 1))
        return _Watched("shortened", began, 1, lambda: store.read("shortened", hurry=True), version)

    # --- watching ---------------------------------------------------------------------------

    def _observe(self, store: LeaseStore, record: _Watched) -> None:
        """Look at a record, and judge whether it may be as it is.

        What is seen was so at some moment between asking and the answer: too
        early is judged by the latter, too late by the former.
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
