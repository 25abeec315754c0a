"""Lock ids are hidden wherever they are shown, if the process says so: no class is left out."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import json
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import ndb
from hypothesis import given
from hypothesis import strategies as st

import userlock
from tests.unit.cli.terminal import Terminal
from userlock import errors, events, ids
from userlock.contrib.problems import ANSWERED, problem_of
from userlock.lock.lease import Holder, Lease
from userlock.stores import MemoryStore
from userlock.stores.memcache.connections import unexpected
from userlock.stores.stream import Refused
from userlock.testing import ManualClock

#: Hidden by no accident: no message has it.
MARK = "zoe.marker+7@example.org"
ROOT = Path(userlock.__file__).parent
_T = TypeVar("_T")

FORMS: list[dict[str, str]] = [
    {"show_ids": "masked"},
    {"show_ids": "hashed", "id_key": "a secret"},
]


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture(params=FORMS, ids=lambda form: form["show_ids"])
def hidden(request: pytest.FixtureRequest) -> None:
    userlock.configure(**request.param)


def subclasses(kind: type[_T]) -> Iterator[type[_T]]:
    """Give a class and all below it."""
    yield kind
    for each in kind.__subclasses__():
        yield from subclasses(each)


def a_holder() -> Holder:
    return Holder("4f01", "interactive", 1.0, 60.0, "web/1", f"POST /users/{MARK}/coins")


def value_of(name: str) -> Any:
    """Return an argument of that name, with the mark in it if there is a place for it."""
    others = {
        "lock_id": MARK,
        "key": ndb.Key("User", MARK, "Badge", 7, project="p", database="d", namespace=MARK),
        "holder": a_holder(),
        "cycle": ((MARK, a_holder().describe()), (MARK, a_holder().describe())),
        "waited_seconds": 1.0,
        "read_version": 3,
        "found_version": 4,
    }
    words = ("kind", "reason", "detail", "remedy", "policy", "message", "read_at", "put_at")
    return others.get(name, "some words" if name in words else True)


def made(kind: type[BaseException]) -> BaseException:
    """Return an error with all arguments of its class."""
    named: dict[str, Any] = {}
    positional: list[Any] = []
    for name, parameter in parameters_of(kind).items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = value_of(name)
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            positional.append(value_of(name))
    return kind(*positional, **named) if positional or named else kind("some words")


def parameters_of(kind: type[BaseException]) -> dict[str, inspect.Parameter]:
    if kind.__init__ is Exception.__init__:
        return {}
    found: dict[str, inspect.Parameter] = {}
    for each in reversed(kind.__mro__):
        if "__init__" in vars(each) and issubclass(each, errors.UserLockError):
            found |= inspect.signature(each.__init__).parameters
    takes_more = parameters_taken(kind, inspect.Parameter.VAR_KEYWORD)
    own = inspect.signature(kind.__init__).parameters
    return {
        name: each for name, each in found.items() if name != "self" and (takes_more or name in own)
    }


def parameters_taken(kind: type[BaseException], how: Any) -> bool:
    return any(each.kind is how for each in inspect.signature(kind.__init__).parameters.values())


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    """Open a context: ndb names keys in one only."""
    with ndb.Client(project="p", credentials=AnonymousCredentials()).context():
        yield


ERRORS = sorted(set(subclasses(errors.UserLockError)), key=lambda kind: kind.__name__)
#: Errors of the app's set-up: they have no lock id, or their text is given whole.
PLAIN_TEXT = (errors.ConfigurationError,)


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_no_error_shows_one(kind: type[errors.UserLockError]) -> None:
    error = made(kind)
    for each in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert MARK not in f"{each}\n{each!r}\n{each.args!r}"
    if "lock_id" in parameters_of(kind):
        assert error.__dict__["lock_id"] == MARK, "the attribute is for the program"
    if isinstance(error, ANSWERED):
        assert MARK.encode() not in problem_of(error).body


def test_the_control_plain_errors_show_it() -> None:
    shown = {kind.__name__ for kind in ERRORS if MARK in str(made(kind))}
    with_one = {kind.__name__ for kind in ERRORS if "lock_id" in parameters_of(kind)}
    assert len(with_one) > 20
    # Its message is given whole.
    assert with_one - shown == {"LockError", "LockNotHeld"} - shown
    assert MARK.encode() in problem_of(made(errors.LockTimeout)).body  # type: ignore[arg-type]


#: (Classes with slots are made twice; a module has the one that counts.)
EVENTS = [
    kind
    for kind in subclasses(events.Event)
    if kind is not events.Event and getattr(events, kind.__name__, None) is kind
    if not kind.__name__.startswith("_")
]


def happened(kind: type[events.Event]) -> events.Event:
    """Return an event of that kind."""
    values: dict[str, Any] = {
        "lock_id": MARK,
        "error": made(errors.StaleWriteError if "Stale" in kind.__name__ else errors.LeaseRanOut),
        "blocked_by": a_holder().describe(),
        "holder": a_holder().describe(),
        "how": f"it is now held by {a_holder().describe()}",
        "cycle": f"{ids.quoted(MARK)} is held by {a_holder().describe()}",
    }
    words = ("priority", "reason", "by", "outcome")
    return kind(
        **{
            field.name: values.get(field.name, "a word" if field.name in words else 2)
            for field in dataclasses.fields(kind)
        }
    )


def logged(event: events.Event, caplog: pytest.LogCaptureFixture) -> str:
    """Return all that a formatter could write of the event's record."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "userlock"):
        events.log_event(event)
    return "\n".join(
        f"{record.getMessage()}\n{record.__dict__!r}\n{json.dumps(record.__dict__, default=str)}"
        for record in caplog.records
    )


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_no_event_shows_one(kind: type[events.Event], caplog: pytest.LogCaptureFixture) -> None:
    event = happened(kind)
    text = logged(event, caplog)
    assert text
    assert MARK not in f"{text}\n{event!r}\n{event}"


def test_the_control_plain_events_show_it(caplog: pytest.LogCaptureFixture) -> None:
    for event in map(happened, EVENTS):
        assert MARK in logged(event, caplog)
        assert MARK in repr(event)


@pytest.mark.usefixtures("hidden")
def test_no_repr_shows_one(store: MemoryStore, clock: ManualClock) -> None:
    service = userlock.LockService(store, clock=clock)
    with userlock.scope(service), userlock.global_lock(MARK) as held:
        assert MARK not in f"{held!r} {held._lease!r}"
        with pytest.raises(userlock.LockNotHeld) as caught:
            userlock.release_lock(MARK + "x")
        assert MARK not in str(caught.value), "neither the lock nor those that are held"
    assert isinstance(held._lease, Lease)


# --- the command line ---------------------------------------------------------------------------


@pytest.fixture
def terminal(store: MemoryStore, clock: ManualClock) -> Terminal:
    terminal = Terminal(store, clock)
    terminal.hold(MARK, request=f"POST /users/{MARK}")
    terminal.wait(MARK, "4f02", f"nightly for {MARK}")
    terminal.hold(f"other {MARK}")
    return terminal


COMMANDS = [
    ["holder", MARK],
    ["holder", MARK, "--json"],
    ["holder", f"free {MARK}"],
    ["locks"],
    ["locks", "--json"],
    ["locks", MARK],
    ["locks", MARK, MARK, "--json"],
    ["break", MARK],
    ["break", f"free {MARK}", "--yes"],
    ["break", MARK, "--yes"],
    ["break", f"other {MARK}", "--yes", "--json"],
    ["doctor"],
    ["holder", "x", MARK],
    [MARK, "holder"],
    ["holder", "--jsn", MARK, MARK],
    ["locks", "--interval", MARK],
    ["holder", MARK * 100],
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["show_ids"])
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments)[:40])
def test_no_command_shows_one(
    terminal: Terminal,
    form: dict[str, str],
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    terminal.environ["USERLOCK_SHOW_IDS"] = form["show_ids"]
    terminal.environ["USERLOCK_ID_KEY"] = form.get("id_key", "")
    typed = "n\n" if arguments == ["break", MARK] else None
    found = terminal.run(*arguments, typed=typed)
    captured = capsys.readouterr()
    text = found.out + found.err + captured.out + captured.err + caplog.text
    assert text
    assert MARK not in text
    assert ids.are_plain(), "the command line leaves the process as it was"


def test_the_control_plain_commands_show_it(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = [MARK in terminal.run(*arguments).out for arguments in COMMANDS[:7]]
    assert all(shown)


def test_the_command_line_gives_the_hash_of_an_id(terminal: Terminal) -> None:
    """So an operator finds the log lines of a lock, and the lock of a log line."""
    terminal.environ |= {"USERLOCK_SHOW_IDS": "hashed", "USERLOCK_ID_KEY": "a secret"}
    found = terminal.run("holder", MARK, "--json").document
    userlock.configure(show_ids="hashed", id_key="a secret")
    assert found["lock_id"] == ids.show(MARK) == ids.quoted(MARK)
    assert found["held"]
    listed = terminal.run("locks", "--json").document["locks"]
    assert found["lock_id"] in [each["lock_id"] for each in listed]


@pytest.mark.parametrize("form", ["hash", "hashed"])
def test_a_form_that_is_not_complete_hides_nothing_and_does_nothing(
    terminal: Terminal, form: str
) -> None:
    terminal.environ["USERLOCK_SHOW_IDS"] = form
    code, out, err = terminal.run("holder", MARK)
    assert (code, out) == (2, "")
    assert "USERLOCK_SHOW_IDS" in err
    assert MARK not in err


# --- the setting --------------------------------------------------------------------------------


def test_hashes_need_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ids.KEY_VARIABLE, raising=False)
    with pytest.raises(ValueError, match="secret key"):
        userlock.configure(show_ids="hashed", fencing=False)
    with pytest.raises(ValueError, match="'plain', 'masked', 'hashed'"):
        userlock.configure(show_ids="secret")
    with pytest.raises(ValueError, match="which is not given"):
        userlock.configure(id_key="secret")
    assert ids.are_plain()
    monkeypatch.setenv(ids.KEY_VARIABLE, "one")
    userlock.configure(show_ids="hashed")
    one = ids.show("ann")
    userlock.configure(show_ids="hashed", id_key=b"two")
    assert len({one, ids.show("ann"), ids.show("bob"), ids.show("\ud800")}) == 4


def test_a_lock_that_its_store_names_by_a_hash_has_the_same_one() -> None:
    userlock.configure(show_ids="hashed", id_key="a secret")
    assert ids.show_digest(hashlib.sha256(MARK.encode()).hexdigest()) == ids.show(MARK)


def test_of_an_error_of_memcached_the_first_word_is_shown() -> None:
    userlock.configure(show_ids="masked")
    with pytest.raises(Refused, match=r"it answered 'SERVER_ERROR'$"):
        raise unexpected(b"SERVER_ERROR " + MARK.encode())


@pytest.mark.parametrize("form", [{"show_ids": "plain"}, *FORMS])
@given(st.text() | st.sampled_from(["x" * 10**6, "\ud800", "\x1b[2J\u202e\n"]))
def test_whatever_is_shown_is_short_and_printable(form: dict[str, str], text: str) -> None:
    before = ids.use(ids.form_of(form["show_ids"], form.get("id_key")))
    try:
        for shown in (ids.show, ids.quoted, ids.show_digest, ids.show_request):
            found = shown(text)
            assert found.isprintable()
            assert len(found) <= 2_500
        assert len(ids.exact(text)) <= ids.MAX_CHARACTERS
    finally:
        ids.use(before)


# --- the source ---------------------------------------------------------------------------------


def _names(node: ast.AST) -> Iterator[str]:
    """Give the names that an expression of a message has, outside of calls."""
    if isinstance(node, ast.Call):
        return
    if isinstance(node, ast.Name):
        yield node.id
    if isinstance(node, ast.Attribute):
        yield node.attr
    for child in ast.iter_child_nodes(node):
        yield from _names(child)


def shown_in(source: str) -> list[int]:
    """Return the lines that write a lock id into a text, or log it, without `userlock.ids`."""
    found: list[int] = []
    if "lock_id" not in source:  # not parsed: most files
        return found
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.AST] = []
        if isinstance(node, ast.FormattedValue):
            parts = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "log":
                parts = list(node.args)
        if any(name in ("lock_id", "lock_ids") for part in parts for name in _names(part)):
            found.append(node.lineno)  # type: ignore[attr-defined]
    return found


#: Keys of stores, and tests that ship with the package.
NOT_SHOWN = ("ids.py", "stores/", "testing/contract/", "admin/selftest.py")


def test_all_messages_cross_the_module() -> None:
    found = {
        name: lines
        for path in ROOT.rglob("*.py")
        if not (name := path.relative_to(ROOT).as_posix()).startswith(NOT_SHOWN)
        and (lines := shown_in(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source", ["f'{lock_id!r} is held'", "f'{self.lock_id}'", "log.info('%r', tenure.lock_id)"]
)
def test_the_control_a_message_that_does_not_is_found(source: str) -> None:
    assert shown_in(source) == [1]
