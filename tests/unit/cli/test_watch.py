"""Test `userlock watch`."""

from __future__ import annotations

import json

import pytest

from tests.unit.cli.terminal import Terminal
from userlock.admin.diagnostics import Listed, Listing
from userlock.lock.store import Stored, StoreUnavailable
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


@pytest.fixture
def scene(terminal: Terminal) -> Terminal:
    """Return a terminal with three locks: ann with the longest wait, bob, and carl without any."""
    for lock_id in ("carl", "bob", "ann"):
        terminal.hold(lock_id, f"POST /{lock_id}")
    terminal.wait("ann", "a1", "GET /one")
    terminal.clock.advance(5)
    terminal.wait("bob", "b1", "GET /two")
    terminal.wait("bob", "b2", "GET /three")
    terminal.clock.advance(1)
    return terminal


def interrupted_after(terminal: Terminal, seconds: float) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    terminal.clock.after(seconds, interrupt)


def test_the_longest_wait_comes_first(scene: Terminal) -> None:
    code, out, err = scene.run("watch", "--once")
    assert (code, err) == (0, "")
    head, titles, *rows = out.splitlines()
    assert "3 held, 2 contended" in head
    assert titles.split() == ["LOCK", "HOLDER", "HELD", "WAITING", "LONGEST", "NEXT"]
    assert [row.split()[0] for row in rows] == ["ann", "bob"]
    assert "6.0s" in rows[0]
    assert rows[1].endswith("2     1.0s  web-b1/7 GET /two")


def test_it_fits_eighty_columns(scene: Terminal) -> None:
    scene.wait("ann", "x" * 300, "GET /" + "y" * 300)
    out = scene.run("watch", "--once", "--all", tty=True).out
    lines = out.replace("\x1b[K", "").replace("\x1b[J", "").splitlines()
    assert lines
    assert all(len(line) < 80 for line in lines)


def test_in_a_pipe_nothing_is_cut(scene: Terminal) -> None:
    scene.hold("long", "GET /" + "y" * 150)
    scene.wait("long", "w", "GET /z")
    assert "y" * 150 in scene.run("watch", "--once").out


def test_a_lock_whose_server_is_down_does_not_hide_the_others(
    scene: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = scene.store.read

    def fail(lock_id: str, *, hurry: bool = False) -> Stored | None:
        if lock_id in down:
            raise StoreUnavailable("memcached at h2:11211: timed out")
        return read(lock_id, hurry=hurry)

    monkeypatch.setattr(scene.store, "read", fail)
    down: tuple[str, ...]
    for down in ("ann", "bob"), ("carl",):
        code, out, _ = scene.run("watch", "ann", "bob", "carl", "--once")
        assert code == 0
        assert "not complete" in out
        assert "memcached at h2:11211: timed out" in out
        for name in {"ann", "bob", "carl"}.difference(down):
            assert f"POST /{name}" in out
        document = json.loads(scene.run("watch", "ann", "bob", "carl", "--once", "--json").out)
        assert (document["listed"], document["complete"]) == (3 - len(down), False)
    down = "ann", "bob", "carl"
    assert scene.run("watch", "ann", "bob", "carl", "--once").code != 0


def test_all_and_named(scene: Terminal) -> None:
    assert "carl" not in scene.run("watch", "--once").out
    assert "carl" in scene.run("watch", "--once", "--all").out
    named = scene.run("watch", "--once", "carl", "nobody").out
    assert [line.split()[0] for line in named.splitlines()[2:]] == ["carl", "nobody"]
    assert "(free)" in named


def test_one_json_document_per_sample(scene: Terminal) -> None:
    interrupted_after(scene, 2.5)
    code, out, _ = scene.run("watch", "--json")
    assert code == 130
    samples = [json.loads(line) for line in out.splitlines()]
    assert len(samples) == 3
    assert [each["lock_id"] for each in samples[0]["locks"]] == ["ann", "bob"]
    assert samples[0]["held"] == 3
    assert samples[0]["complete"] is True
    assert samples[0]["locks"][0]["waiters"][0]["request"] == "GET /one"
    assert samples[0]["at"] < samples[1]["at"]


def test_the_interval(scene: Terminal) -> None:
    interrupted_after(scene, 2.5)
    scene.run("watch", "--interval", "0.5")
    assert scene.clock.sleeps[:3] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("value", ["0", "-1", "nan", "soon", "1e9", ""])
def test_a_wrong_interval(scene: Terminal, value: str) -> None:
    code, out, _ = scene.run("watch", f"--interval={value}")
    assert (code, out) == (2, "")


def test_on_a_terminal_it_is_drawn_in_place(scene: Terminal) -> None:
    interrupted_after(scene, 1.5)
    code, out, err = scene.run("watch", tty=True)
    assert (code, err) == (130, "\n")
    assert out.count("\x1b[4F") == 1  # up by the four lines of the first sample
    assert "\x1b[2J" not in out


def test_a_small_terminal_shows_how_many_are_missing(scene: Terminal) -> None:
    scene.size = (80, 5)
    out = scene.run("watch", "--once", tty=True).out
    assert "… and 1 more" in out


def test_a_terminal_that_changes_its_size_is_cleared(scene: Terminal) -> None:
    scene.clock.after(0.5, lambda: setattr(scene, "size", (60, 20)))
    interrupted_after(scene, 1.5)
    out = scene.run("watch", tty=True).out
    assert out.count("\x1b[H\x1b[2J") == 1


def test_a_dumb_terminal_gets_plain_lines(scene: Terminal) -> None:
    scene.environ["TERM"] = "dumb"
    interrupted_after(scene, 1.5)
    assert "\x1b" not in scene.run("watch", tty=True).out


def test_a_store_that_is_down_from_the_start(scene: Terminal) -> None:
    scene.memory().go_down()
    code, out, err = scene.run("watch", "ann")
    assert (code, out) == (3, "")
    assert "does not answer" in err


def test_it_continues_through_an_outage(scene: Terminal) -> None:
    scene.clock.after(0.5, scene.memory().go_down)
    scene.clock.after(2.5, scene.memory().come_back)
    interrupted_after(scene, 5.5)
    code, out, err = scene.run("watch", "--json", "ann")
    assert (code, err) == (130, "\n")
    samples = [json.loads(line) for line in out.splitlines()]
    assert ["error" in each for each in samples][:3] == [False, True, True]
    assert "locks" in samples[-1]


@pytest.fixture
def listing(clock: ManualClock) -> Terminal:
    terminal = Terminal(MemoryStore(clock=clock), clock)
    terminal.hold("ann")
    terminal.wait("ann", "p", "GET /one")
    return terminal


def lists(monkeypatch: pytest.MonkeyPatch, listing: Listing) -> None:
    """Let the store list these locks."""
    monkeypatch.setattr("userlock.admin.memory.list_locks", lambda *_: listing)


def listed(terminal: Terminal, name: str, *, hashed: bool = False) -> Listed:
    stored = terminal.store.read("ann")
    assert stored is not None
    return Listed.of(name, hashed, stored)


def test_an_incomplete_list_is_called_so(
    listing: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists(monkeypatch, Listing([listed(listing, "ann")], "h:1: [Errno 111] Connection refused"))
    code, out, _ = listing.run("watch", "--once")
    assert code == 0
    assert "GET /one" in out
    assert out.endswith("not complete: h:1: Connection refused\n")
    found = listing.run("watch", "--once", "--json").document
    assert found["complete"] is False
    assert found["note"] == "h:1: Connection refused"


def test_a_server_that_lists_nothing(listing: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    lists(monkeypatch, Listing([], "memcached was started with -X"))
    code, out, err = listing.run("watch")
    assert (code, out) == (2, "")
    assert "memcached was started with -X. To fix it: name the locks to watch" in err


def test_a_hashed_id_is_shown_as_what_it_is(
    listing: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists(monkeypatch, Listing([listed(listing, "abcd", hashed=True)]))
    assert "sha256:abcd" in listing.run("watch", "--once").out
    (lock,) = listing.run("watch", "--once", "--json").document["locks"]
    assert lock["lock_id"] is None
    assert lock["hash"] == "sha256:abcd"


def test_a_lock_that_goes_while_it_is_listed(
    listing: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing.store, "lock_ids", lambda: ["gone"])
    assert "0 held, 0 contended" in listing.run("watch", "--once").out
