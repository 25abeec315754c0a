"""Test `userlock locks`, `holder` and `break`."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.leases import existing
from tests.unit.cli.terminal import Terminal
from userlock.admin.locks import Listing, LockState
from userlock.events import LISTENERS, Broken, Event, log_event
from userlock.lock.lease import Lost
from userlock.lock.record import BlockedOn, Record, blocked
from userlock.lock.store import LeaseStore, Stored, StoreUnavailable
from userlock.stores import MemoryStore
from userlock.testing import ManualClock
from userlock.waits import run

# --- holder -------------------------------------------------------------------------------------


def test_the_holder_and_its_queue(terminal: Terminal) -> None:
    lease = terminal.hold("ann", "POST /answers")
    terminal.clock.advance(2)
    terminal.wait("ann", "b", "nightly", "batch")
    terminal.wait("ann", "p", "GET /badges")
    terminal.store.append("ann", blocked(lease.token, BlockedOn("bob", terminal.clock.wall(), "t")))
    terminal.clock.advance(1.5)
    code, out, err = terminal.run("holder", "ann")
    assert (code, err) == (0, "")
    for shown in (
        "ann: held",
        "request   POST /answers",
        "3.5s ago",
        "60s at a time; 56s left",
        "waits for bob since",
        "waiting   2\n",
    ):
        assert shown in out
    assert out.index("GET /badges") < out.index("nightly"), "in queue order"

    found = terminal.run("holder", "ann", "--json").document
    assert (found["lock_id"], found["held"], found["seconds_left"]) == ("ann", True, 56.5)
    holder, (first, _) = found["holder"], found["waiters"]
    assert (holder["request"], holder["token"]) == ("POST /answers", lease.token)
    assert (holder["held_seconds"], holder["waits_for"]) == (pytest.approx(3.5), "bob")
    assert (first["process"], first["waiting_seconds"]) == ("web-p/7", pytest.approx(1.5))


def test_several_waiters_of_one_process_are_counted(terminal: Terminal) -> None:
    """`max_waiting` bounds them."""
    terminal.hold("ann")
    for token in ("p", "q"):
        terminal.wait("ann", token, "GET /badges")
    terminal.wait("ann", "r", "GET /videos", process="web-p/7")
    assert "waiting   3; 2 of them in web-p/7\n" in terminal.run("holder", "ann").out


def nobody(terminal: Terminal) -> None: ...


def released(terminal: Terminal) -> None:
    lease = terminal.hold("ann")
    terminal.wait("ann", "p", "GET /badges")
    terminal.service.release(lease)


def ran_out(terminal: Terminal) -> None:
    terminal.hold("ann")
    terminal.wait("ann", "p", "GET /badges")
    terminal.clock.advance(61)


def broken(terminal: Terminal) -> None:
    terminal.hold("ann")
    terminal.wait("ann", "p", "GET /badges")
    terminal.service.break_lock("ann", by="olga")


@pytest.mark.parametrize(
    ("before", "says"),
    [
        (nobody, "ann: not held, no waiters\n"),
        (released, "the last lease was released, and the first waiter may take the lock"),
        (ran_out, "ran out"),
        (broken, "was broken by olga"),
    ],
)
def test_nobody_holds_it(terminal: Terminal, before: Callable[[Terminal], None], says: str) -> None:
    before(terminal)
    code, out, _ = terminal.run("holder", "ann")
    assert (code, says in out) == (1, True)
    assert ("GET /badges" in out) is (before is not nobody)
    found = terminal.run("holder", "ann", "--json")
    assert (found.code, found.document["held"], found.document["holder"]) == (1, False, None)


@pytest.mark.parametrize(
    "lock_id", ["a b", "日本", "\x1b[31mred", "x" * 1500, "sha256:ab", "\udcff", "--", "*"]
)
def test_lock_ids_are_passed_as_given(terminal: Terminal, lock_id: str) -> None:
    terminal.hold(lock_id)
    assert terminal.run("holder", "--", lock_id).code == 0
    assert terminal.run("holder", "--json", "--", lock_id).document["lock_id"] == lock_id


# --- locks --------------------------------------------------------------------------------------


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
    code, out, err = scene.run("locks")
    assert (code, err) == (0, "")
    head, titles, *rows = out.splitlines()
    assert "3 held, 2 contended" in head
    assert titles.split() == ["LOCK", "HOLDER", "HELD", "WAITING", "LONGEST", "NEXT"]
    assert [row.split()[0] for row in rows] == ["ann", "bob", "carl"]
    assert "6.0s" in rows[0]
    assert rows[1].endswith("2     1.0s  web-b1/7 GET /two")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["ann", "bob", "carl"]),
        (["--contended"], ["ann", "bob"]),
        (["carl", "nobody"], ["carl", "nobody"]),
    ],
    ids=str,
)
def test_the_locks_that_are_listed(scene: Terminal, arguments: list[str], names: list[str]) -> None:
    out = scene.run("locks", *arguments).out
    assert [line.split()[0] for line in out.splitlines()[2:]] == names
    assert ("(free)" in out) is ("nobody" in names)
    found = scene.run("locks", "--json", *arguments).document
    assert [each["lock_id"] for each in found["locks"]] == names
    assert found["complete"] is True
    if "ann" in names:
        assert found["locks"][0]["waiters"][0]["request"] == "GET /one"


def test_long_names_are_cut_but_lock_ids_are_not(scene: Terminal) -> None:
    scene.hold("long" * 50, "GET /" + "z" * 150)
    out = scene.run("locks").out
    assert "long" * 50 in out
    assert "z" * 50 not in out


def test_follow_writes_a_document_for_each_list(scene: Terminal) -> None:
    interrupted_after(scene, 2.5)
    code, out, _ = scene.run("locks", "--follow", "--interval", "0.5", "--json")
    samples = [json.loads(line) for line in out.splitlines()]
    assert (code, len(samples)) == (130, 5)
    assert samples[0]["at"] < samples[1]["at"]


def test_a_lock_whose_server_is_down_does_not_hide_the_others(
    scene: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = scene.store.read

    def fail(lock_id: str, *, hurry: bool = False) -> Stored | None:
        if lock_id in down:
            raise StoreUnavailable("memcached at h2:11211: timed out")
        return read(lock_id, hurry=hurry)

    monkeypatch.setattr(scene.store, "read", fail)
    everyone = ["ann", "bob", "carl"]
    down = everyone[:2]
    code, out, _ = scene.run("locks", *everyone)
    assert (code, "POST /carl" in out, "POST /ann" in out) == (0, True, False)
    assert "not complete" in out
    assert "memcached at h2:11211: timed out" in out
    document = scene.run("locks", *everyone, "--json").document
    assert (document["listed"], document["complete"]) == (1, False)
    down = everyone
    assert scene.run("locks", *everyone).code == 3


@pytest.mark.parametrize(
    ("listing", "code", "says"),
    [
        (Listing([], "memcached was started with -X"), 2, "-X. To fix it: name the locks to show"),
        (Listing([], ""), 0, "0 held, 0 contended"),
    ],
    ids=["not possible", "none"],
)
def test_a_server_that_lists_nothing(
    scene: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    listing: Listing,
    code: int,
    says: str,
) -> None:
    monkeypatch.setattr("userlock.admin.memory.list_locks", lambda *_: listing)
    outcome = scene.run("locks")
    assert outcome.code == code
    assert says in outcome.out + outcome.err


def test_more_locks_than_are_listed(scene: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("userlock.admin.locks._MOST_LOCKS", 1)
    outcome = scene.run("locks", "--json")
    assert (outcome.document["complete"], outcome.document["listed"]) == (False, 1)
    assert "after 1 locks" in outcome.document["note"]


def test_an_incomplete_list_and_an_id_that_is_hashed(
    scene: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = existing(scene.store.read("ann"))
    note = "h:1: [Errno 111] Connection refused"
    listing = Listing([LockState("abcd", Record(stored), True)], note)
    monkeypatch.setattr("userlock.admin.memory.list_locks", lambda *_: listing)
    out = scene.run("locks").out
    assert "sha256:abcd" in out
    assert out.endswith("not complete: h:1: Connection refused\n")
    found = scene.run("locks", "--json").document
    assert (found["complete"], found["note"]) == (False, "h:1: Connection refused")
    assert [(each["lock_id"], each["hash"]) for each in found["locks"]] == [(None, "sha256:abcd")]


def test_a_lock_that_goes_while_it_is_listed(
    scene: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene.store, "lock_ids", lambda: ["gone"])
    assert "0 held, 0 contended" in scene.run("locks").out


# --- break --------------------------------------------------------------------------------------


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    found: list[Event] = []
    monkeypatch.setattr(LISTENERS, "_listeners", (log_event, found.append))
    return found


def test_it_breaks_the_lease_that_it_showed(
    terminal: Terminal, heard: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    lease = terminal.hold("ann", "POST /answers")
    terminal.wait("ann", "p", "GET /badges")
    holder = existing(terminal.service.holder("ann"))
    code, out, err = terminal.run("break", "ann", typed="y\n")
    assert code == 0
    assert "POST /answers" in err
    assert "GET /badges" in err
    assert err.endswith("Break the lock? The holder continues until it notices. [y/N] ")
    assert "ann: broken; it was held by" in out
    assert "Next is web-p/7 GET /badges." in out
    me = f"{getpass.getuser()}@{socket.gethostname()}"
    assert heard == [Broken("ann", holder.describe(), me)]
    line = f"lock 'ann' broken by {me}; it was held by {holder.describe()}"
    assert caplog.messages == [line]
    assert run(terminal.service.give_back, lease) == Lost("broken", None, me)


def test_without_a_question(terminal: Terminal) -> None:
    lease = terminal.hold("ann", "POST /answers")
    terminal.wait("ann", "p", "GET /badges")
    found = terminal.run("break", "ann", "--yes", "--json", "--by", "ol\x1bga").document
    assert (found["broken"], found["by"]) == (True, "ol?ga")
    assert found["holder"]["request"] == "POST /answers"
    assert [each["request"] for each in found["waiters"]] == ["GET /badges"]
    assert run(terminal.service.give_back, lease) == Lost("broken", None, "ol?ga")


@pytest.mark.parametrize("typed", ["n\n", "\n", "", "no\n", "yellow\n"])
def test_anything_but_yes_is_no(terminal: Terminal, heard: list[Event], typed: str) -> None:
    terminal.hold("ann")
    code, out, _ = terminal.run("break", "ann", typed=typed)
    assert (code, out, heard) == (1, "ann: nothing broken: you said no\n", [])
    assert terminal.service.holder("ann") is not None


def test_without_a_terminal_it_needs_yes(terminal: Terminal) -> None:
    terminal.hold("ann")
    code, out, err = terminal.run("break", "ann")
    assert (code, out) == (2, "")
    assert "standard input is not a terminal. To fix it: pass --yes" in err
    assert terminal.service.holder("ann") is not None


def test_nobody_holds_the_lock_to_break(terminal: Terminal) -> None:
    outcome = terminal.run("break", "ann", "--yes")
    assert outcome == (1, "ann: nothing broken: nobody holds it\n", "")
    assert terminal.run("break", "ann", "--yes", "--json").document["broken"] is False


def releases(terminal: Terminal) -> None:
    assert terminal.lease is not None
    terminal.service.release(terminal.lease)


def changes_hands(terminal: Terminal) -> None:
    releases(terminal)
    terminal.hold("ann", "GET /innocent")


def is_overwritten(terminal: Terminal) -> None:
    terminal.store.swap("ann", existing(terminal.store.read("ann")).version, b"two", 60)


def interrupts(terminal: Terminal) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("meanwhile", "code", "held"),
    [
        (releases, 1, False),
        (changes_hands, 1, True),
        (is_overwritten, 1, True),
        (interrupts, 130, True),
        (lambda terminal: terminal.memory().go_down(), 3, True),
    ],
    ids=["released", "another holder", "another value", "Ctrl-C", "the store is down"],
)
def test_nothing_else_is_hit_while_it_asks(
    terminal: Terminal, meanwhile: Callable[[Terminal], None], code: int, held: bool
) -> None:
    terminal.lease = terminal.hold("ann")
    outcome = terminal.run("break", "ann", typed="y\n", while_asked=lambda: meanwhile(terminal))
    assert outcome.code == code
    assert ("nothing broken" in outcome.out) is (code == 1)
    terminal.memory().come_back()
    assert (terminal.run("holder", "ann").code == 0) is held


def test_breaking_any_holder_would_hit_the_next_one(terminal: Terminal) -> None:
    """The negative control: break the lock, not the lease that was shown."""
    terminal.lease = terminal.hold("ann")
    changes_hands(terminal)
    assert existing(terminal.service.break_lock("ann")).request == "GET /innocent"


# --- other stores, and values that are not ours -------------------------------------------------


@pytest.mark.parametrize("record", [b"something else", b"\x1b[2J\x07\xff\xfe", b""])
def test_a_foreign_value_blocks_the_lock_until_it_is_removed(
    terminal: Terminal, record: bytes
) -> None:
    terminal.store.create("ann", record, 60)
    code, out, _ = terminal.run("holder", "ann")
    assert code == 0  # nobody can take the lock meanwhile
    assert "something that userlock did not write" in out
    assert terminal.run("holder", "ann", "--json").document["holder"]["foreign"] is True
    outcome = terminal.run("break", "ann", "--yes")
    assert outcome[:2] == (0, "ann: removed something that userlock did not write\n")
    assert terminal.store.read("ann") is None


@pytest.mark.parametrize(
    "arguments", [("holder", "ann"), ("locks", "ann"), ("break", "ann", "--yes")]
)
def test_the_store_does_not_answer(terminal: Terminal, arguments: tuple[str, ...]) -> None:
    terminal.memory().go_down("memcached at h:1: [Errno 111] Connection refused")
    says = "the store does not answer: memcached at h:1: Connection refused"
    assert terminal.run(*arguments) == (3, "", f"userlock {arguments[0]}: {says}\n")
    found = terminal.run(*arguments, "--json")
    assert (found.code, found.document) == (3, {"error": says})


def plain(store: MemoryStore) -> LeaseStore:
    """Return a third party's store, which can do no more than it must."""

    def forwarded(name: str) -> Callable[..., Any]:
        return lambda _, *args, **options: getattr(store, name)(*args, **options)

    def read(_: object, lock_id: str, *, hurry: bool = False) -> Stored | None:
        stored = store.read(lock_id, hurry=hurry)
        return None if stored is None else stored._replace(seconds_left=None)

    verbs = {name: forwarded(name) for name in LeaseStore.__abstractmethods__}
    found: LeaseStore = type("Plain", (LeaseStore,), {**verbs, "read": read})()
    return found


def test_a_store_of_a_third_party(clock: ManualClock) -> None:
    terminal = Terminal(plain(MemoryStore(clock=clock)), clock)
    terminal.hold("ann")
    assert "60s at a time\n" in terminal.run("holder", "ann").out
    assert terminal.run("holder", "ann", "--json").document["seconds_left"] is None
    assert terminal.run("locks").code == 2
    assert "name the locks to show" in terminal.run("locks").err
    assert terminal.run("locks", "ann").code == 0
    assert terminal.run("doctor").code == 0
