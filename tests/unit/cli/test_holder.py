"""Test `userlock holder`."""

from __future__ import annotations

import json

import pytest

from tests.unit.cli.terminal import Terminal
from userlock.lock.record import BlockedOn, blocked
from userlock.lock.store import LeaseStore, Stored
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


def test_it_shows_the_holder_and_the_queue_in_order(terminal: Terminal) -> None:
    terminal.hold("ann", "POST /answers")
    terminal.clock.advance(2)
    terminal.wait("ann", "b", "nightly", "batch")
    terminal.wait("ann", "p", "GET /badges")
    terminal.clock.advance(1.5)
    code, out, err = terminal.run("holder", "ann")
    assert (code, err) == (0, "")
    assert "ann: held" in out
    assert "request   POST /answers" in out
    assert "3.5s ago" in out
    assert "60s at a time; 56s left" in out
    person, batch = out.index("GET /badges"), out.index("nightly")
    assert person < batch


def test_the_json_document(terminal: Terminal) -> None:
    lease = terminal.hold("ann", "POST /answers")
    terminal.wait("ann", "p", "GET /badges")
    terminal.clock.advance(3.5)
    found = terminal.run("holder", "ann", "--json").document
    assert found["lock_id"] == "ann"
    assert found["held"] is True
    assert found["seconds_left"] == 56.5
    assert found["holder"]["request"] == "POST /answers"
    assert found["holder"]["token"] == lease.token
    assert found["holder"]["held_seconds"] == pytest.approx(3.5)
    assert [each["process"] for each in found["waiters"]] == ["web-p/7"]
    assert found["waiters"][0]["waiting_seconds"] == pytest.approx(3.5)


def test_several_waiters_of_one_process_are_counted(terminal: Terminal) -> None:
    """`max_waiting` bounds them."""
    terminal.hold("ann", "POST /answers")
    terminal.wait("ann", "p", "GET /badges")
    terminal.wait("ann", "q", "GET /badges")
    assert "waiting   2\n" in terminal.run("holder", "ann").out
    terminal.wait("ann", "r", "GET /videos", process="web-p/7")
    assert "waiting   3; 2 of them in web-p/7\n" in terminal.run("holder", "ann").out


def test_nobody_holds_it(terminal: Terminal) -> None:
    assert terminal.run("holder", "ann") == (1, "ann: not held, no waiters\n", "")
    found = terminal.run("holder", "ann", "--json")
    assert found.code == 1
    assert found.document["held"] is False
    assert found.document["holder"] is None


def test_released_but_not_yet_taken(terminal: Terminal) -> None:
    lease = terminal.hold("ann")
    terminal.wait("ann", "p", "GET /badges")
    terminal.service.release(lease)
    code, out, _ = terminal.run("holder", "ann")
    assert code == 1
    assert "the last lease was released, and the first waiter may take the lock" in out
    assert "GET /badges" in out


def test_it_ran_out(terminal: Terminal) -> None:
    terminal.hold("ann")
    terminal.wait("ann", "p", "GET /badges")
    terminal.clock.advance(61)
    code, out, _ = terminal.run("holder", "ann")
    assert code == 1
    assert "ran out" in out


def test_it_was_broken(terminal: Terminal) -> None:
    terminal.hold("ann")
    terminal.wait("ann", "p", "GET /badges")
    terminal.service.break_lock("ann", by="olga")
    code, out, _ = terminal.run("holder", "ann")
    assert code == 1
    assert "was broken by olga" in out


def test_a_holder_that_waits_for_another_lock(terminal: Terminal) -> None:
    lease = terminal.hold("ann")
    on = BlockedOn("bob", terminal.clock.wall(), "t")
    terminal.store.append("ann", blocked(lease.token, on))
    assert "waits for bob since" in terminal.run("holder", "ann").out
    assert terminal.run("holder", "ann", "--json").document["holder"]["waits_for"] == "bob"


@pytest.mark.parametrize(
    "record",
    [
        b"something else",
        b"\x1b[2J\x07\xff\xfe",
        b"\x1b]0;title\x07\n+i \x1b[31m 1 [1]",
        b'["","x",NaN,1e999,"\\u001b[2J","\\u0007"]',
        b"",
    ],
)
def test_a_foreign_value_under_our_key(terminal: Terminal, record: bytes) -> None:
    terminal.store.create("ann", record, 60)
    code, out, _ = terminal.run("holder", "ann")
    assert code == 0  # nobody can take the lock meanwhile
    assert "something that userlock did not write" in out
    _harmless(out)
    found = terminal.run("holder", "ann", "--json")
    assert found.document["holder"]["foreign"] is True
    _harmless(found.out)


def test_records_that_only_look_like_ours(terminal: Terminal) -> None:
    record = b'["t\\u001b[1m","\\u001b[2J",NaN,Infinity,"p\\u202e","r\\u0000\\n"]'
    record += b'\n+i w -Infinity ["\\u001bc","\\r\\n"]\n+i v 1e300 [1, 2]'
    terminal.store.create("ann\x1b[31m", record, 60)
    for arguments in (("holder", "ann\x1b[31m"), ("watch", "--once"), ("watch", "--once", "--all")):
        code, out, err = terminal.run(*arguments)
        assert (code, err) == (0, "")
        _harmless(out)
        found = terminal.run(*arguments, "--json")
        assert found.document
        _harmless(found.out)


def _harmless(text: str) -> None:
    assert all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize(
    "lock_id", ["a b", "日本", "\x1b[31mred", "x" * 1500, "sha256:ab", "\udcff", "--", "*"]
)
def test_lock_ids_are_passed_as_given(terminal: Terminal, lock_id: str) -> None:
    terminal.hold(lock_id)
    code, out, _ = terminal.run("holder", "--", lock_id)
    assert code == 0
    _harmless(out)
    assert terminal.run("holder", "--json", "--", lock_id).document["lock_id"] == lock_id


def test_an_empty_lock_id_is_a_mistake(terminal: Terminal) -> None:
    code, out, err = terminal.run("holder", "")
    assert (code, out) == (2, "")
    assert "must not be empty" in err


def test_the_store_does_not_answer(terminal: Terminal) -> None:
    terminal.memory().go_down("memcached at h:1: [Errno 111] Connection refused")
    assert terminal.run("holder", "ann") == (
        3,
        "",
        "userlock holder: the store does not answer: memcached at h:1: Connection refused\n",
    )
    found = terminal.run("holder", "ann", "--json")
    assert found.code == 3
    assert "Connection refused" in json.loads(found.out)["error"]


class _Plain(LeaseStore):
    """A third party's store, which can do no more than it must."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> object | None:
        return self._store.create(lock_id, record, ttl_seconds)

    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        stored = self._store.read(lock_id, hurry=hurry)
        return None if stored is None else stored._replace(seconds_left=None)

    def swap(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        return self._store.swap(lock_id, version, record, ttl_seconds)

    def remove(self, lock_id: str, version: object) -> bool:
        return self._store.remove(lock_id, version)

    def append(self, lock_id: str, line: bytes) -> Stored | None:
        return self._store.append(lock_id, line)

    def close(self) -> None: ...


def test_a_store_that_does_not_tell_the_time(clock: ManualClock) -> None:
    terminal = Terminal(_Plain(MemoryStore(clock=clock)), clock)
    terminal.hold("ann")
    assert "60s at a time\n" in terminal.run("holder", "ann").out
    assert terminal.run("holder", "ann", "--json").document["seconds_left"] is None
    assert terminal.run("watch", "--once").code == 2
    assert "name the locks to watch" in terminal.run("watch", "--once").err
    assert terminal.run("watch", "--once", "ann").code == 0
    assert terminal.run("doctor").code == 0
