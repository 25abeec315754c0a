"""The pages in docs/reference/ are complete and correct."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import logging
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import userlock
import userlock.errors
import userlock.testing
from tests.documents import ROOT, Page
from tools.reference import RENDERED, rendered
from userlock import events
from userlock.contrib import flask, wsgi
from userlock.contrib.request_scope import RequestOptions, RequestScope
from userlock.events import Event
from userlock.settings import Settings
from userlock.stores.datastore import DatastoreStore
from userlock.stores.memcache.store import parse as memcache_parts
from userlock.stores.pool import CONNECT_TIMEOUT, REPLY_TIMEOUT
from userlock.stores.redis.url import parse as redis_parts
from userlock.stores.urls import open_url

REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
SHOWN = [
    name
    for page in REFERENCE
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
]
ERRORS = [
    name
    for name, value in vars(userlock.errors).items()
    if isinstance(value, type) and issubclass(value, userlock.UserLockError)
]
CONTRIB = ("flask", "django", "wsgi", "inspector", "problems", "opentelemetry")


def public(module: str) -> Iterator[str]:
    """Yield the public names of a module."""
    found = importlib.import_module(module)
    its_own = [
        name
        for name, value in vars(found).items()
        if getattr(value, "__module__", "") == module and not name.startswith("_")
    ]
    for name in getattr(found, "__all__", its_own):
        yield f"{module}.{name}"


@pytest.mark.parametrize(
    "module",
    [
        "userlock",
        *(f"userlock.{name}" for name in ("events", "stores", "constraints", "deletion")),
        *(f"userlock.{name}" for name in ("outbox", "testing")),
        *(f"userlock.contrib.{name}" for name in CONTRIB),
    ],
)
def test_each_public_name_is_in_the_reference(module: str) -> None:
    names = list(public(module))
    assert names
    assert [name for name in names if name not in SHOWN] == []


def test_each_fixture_is_in_the_reference() -> None:
    from userlock.testing import plugin

    assert {f"userlock.testing.fixtures.{name}" for name in plugin.__all__} <= set(SHOWN)


def test_it_is_rendered_for_readers_of_the_repository() -> None:
    there = {path.name: path.read_text() for path in RENDERED.glob("*.md")}
    assert there == rendered(), "run `make reference`"
    entries = re.findall(r"^### `(\S+)`$", "".join(there.values()), re.MULTILINE)
    assert sorted(entries) == sorted(SHOWN)


def test_nothing_is_there_twice() -> None:
    assert sorted(SHOWN) == sorted(set(SHOWN))


# --- errors -------------------------------------------------------------------------------


def bases_of(tree: str) -> dict[str, str]:
    """Parse a drawn tree: each name with its parent."""
    path: list[str] = []
    found = {}
    for line in tree.splitlines():
        match = re.match(r"([│├└─ ]*)(\w+)", line)
        assert match is not None
        depth = len(match[1]) // 4
        path[depth:] = [match[2]]
        found[match[2]] = path[depth - 1] if depth else "Exception"
    return found


def test_the_tree_of_errors_is_the_one_of_the_classes() -> None:
    """The page shows it: the docstring of the module."""
    assert "userlock.errors" in SHOWN
    drawn = (userlock.errors.__doc__ or "").split("\n    UserLockError\n")[1].split("\n\n")[0]
    assert bases_of("UserLockError\n" + textwrap.dedent(drawn)) == {
        name: getattr(userlock, name).__bases__[0].__name__ for name in ERRORS
    }


def test_each_attribute_of_an_error_is_documented() -> None:
    for error in (getattr(userlock, name) for name in ERRORS):
        source = "".join(
            inspect.getsource(each)
            for each in error.__mro__
            if each.__module__.startswith("userlock")
        )
        documented = "".join(each.__doc__ or "" for each in error.__mro__)
        set_there = " ".join(re.findall(r"^ +(self\..*?) = ", source, re.MULTILINE))
        for attribute in set(re.findall(r"self\.([a-z]\w*)", set_there)):
            found = re.search(rf"^ +{attribute}: ", documented, re.MULTILINE)
            assert found, f"{error.__name__}.{attribute}"


# --- events -------------------------------------------------------------------------------

EVENTS = [
    value
    for value in vars(events).values()
    if isinstance(value, type) and issubclass(value, Event) and value is not Event
    if not value.__name__.startswith("_")
]


def example(kind: type[Event], **facts: Any) -> Event:
    """Return an event with a value in each field."""
    error = userlock.StaleWriteError(
        key=None, lock_id="ann", read_version=1, found_version=2, read_at=None, put_at=None
    )
    by_type = {"str": "", "float": 1.0, "int": 1, "bool": False, "str | None": "ann"}
    return kind(
        **{
            field.name: facts.get(field.name, by_type.get(str(field.type), error))
            for field in dataclasses.fields(kind)
        }
    )


def levels(kind: type[Event]) -> set[str]:
    """Return the levels at which it is logged."""
    names = {field.name for field in dataclasses.fields(kind)}
    choices: list[dict[str, Any]] = [{}]
    for name, values in {
        "blocked_by": ("", "web-1/77"),
        "count": (1, 2),
        "enforced": (True, False),
        "outcome": ("done", "failed", "dead", "lost", "unfinished"),
    }.items():
        if name in names:
            choices = [{**each, name: value} for each in choices for value in values]
    lines = [example(kind, **each).log_line() for each in choices]
    return {logging.getLevelName(line[0]) for line in lines if line is not None}


def test_each_event_is_listed_with_its_levels() -> None:
    text = Page("docs/reference/errors.md").text.split("They are logged as\n")[1]
    listed = {
        name: set(re.findall(r"\b[A-Z]{4,}\b", said))
        for said, names in re.findall(r"^- (.+): (`.+`)$", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert listed == {kind.__name__: levels(kind) for kind in EVENTS}


PAGE = Page("docs/reference/errors.md")
LISTENER = PAGE.take("python")


def test_the_listener_listens(capsys: pytest.CaptureFixture[str]) -> None:
    names = LISTENER.run({})
    try:
        names["LISTENERS"].emit(events.Conflict("ann", "web-1/77"))
    finally:
        names["LISTENERS"].remove(names["alarm"])
    assert capsys.readouterr().out == "two requests work under the lock of ann\n"


# --- configuration ------------------------------------------------------------------------

CONFIGURATION = Page("docs/reference/configuration.md").text


class Option(NamedTuple):
    """An option in a list of the page.

    Attributes:
        default: as the page writes it; empty if it does not.
        stores: the kinds of stores that have it, where the page says so.
    """

    default: str
    stores: str


def listed(after: str) -> dict[str, Option]:
    """Return the options in the first list behind some words."""
    items = CONFIGURATION.split(after, 1)[1].split("\n- ", 1)[1].split("\n\n", 1)[0].split("\n- ")
    found = {}
    for item in items:
        head = re.match(r"((?:`[^`]+`(?:,\s+)?)+)(?: \((.*?)\))?:\s", item)
        assert head is not None, item
        for name, default in re.findall(r"`([\w-]+)=?([^`]*)`", head[1]):
            found[name] = Option(default, head[2] or "")
    return found


def defaults(after: str) -> dict[str, str]:
    """Return the options in the first list behind some words, with their defaults."""
    return {name: option.default for name, option in listed(after).items()}


def parameters(call: Callable[..., Any], *without: str) -> dict[str, Any]:
    """Return the options of a call, with their defaults."""
    found = inspect.signature(call).parameters
    shared = parameters(RequestScope) if "options" in found else {}  # of the integrations
    return shared | {
        name: parameter.default
        for name, parameter in found.items()
        if name not in ("self", "options", "unknown", *without)
    }


def said(default: Any) -> str:
    """Return a default as the page writes it."""
    if isinstance(default, enum.Enum):
        return f'"{default.value}"'
    if dataclasses.is_dataclass(default):
        given = [
            f"{field.name}={said(getattr(default, field.name))}"
            for field in dataclasses.fields(default)
            if type(default) is userlock.Polling or getattr(default, field.name) != field.default
        ]
        bare = default == getattr(userlock, type(default).__name__)()
        return f"{type(default).__name__}({'' if bare else ', '.join(given)})"
    return f'"{default}"' if isinstance(default, str) else repr(default)


@pytest.mark.parametrize(
    ("after", "call", "without"),
    [
        ("`userlock.LockService.from_url`", userlock.LockService.from_url, ("url",)),
        ("### Policy: `userlock.LockPolicy`", userlock.LockPolicy, ()),
        ("## Web integrations", flask.UserLock, ("app",)),
    ],
)
def test_options_and_defaults(after: str, call: Any, without: tuple[str, ...]) -> None:
    expected = {name: said(value) for name, value in parameters(call, *without).items()}
    assert defaults(after) == expected


def test_options_of_the_process() -> None:
    settings = {field.name: said(field.default) for field in dataclasses.fields(Settings)}
    others = {"service": "None", "show_ids": '"plain"', "id_key": "None"}
    assert defaults("`userlock.configure`") == {**others, **settings}
    assert set(parameters(userlock.configure)) == {*others, *settings}


def test_all_verbs_take_the_same_options() -> None:
    expected = parameters(userlock.global_lock, "lock_id")
    assert parameters(userlock.global_locks, "lock_ids") == expected
    assert parameters(userlock.acquire_lock, "lock_id") == expected


@pytest.mark.parametrize(
    "call",
    [userlock.scope, userlock.global_lock, userlock.LockService, userlock.PriorityPolicy],
    ids=lambda call: call.__name__,
)
def test_the_docstring_has_the_options_that_the_page_leaves_to_it(call: Any) -> None:
    said = " ".join((call.__doc__ or "", getattr(call.__init__, "__doc__", None) or ""))
    documented = set(re.findall(r"^ +(\w+): ", said, re.MULTILINE))
    assert parameters(call).keys() - documented == set()


def test_the_page_has_the_defaults_of_a_priority() -> None:
    words = " ".join(CONFIGURATION.split())
    for name, default in parameters(userlock.PriorityPolicy, "polling").items():
        assert f"`{name}={said(default)}`" in words


def test_the_integrations_take_the_same_options() -> None:
    expected = parameters(flask.UserLock, "app", "inspector")
    assert parameters(wsgi.UserLockMiddleware, "app") == expected
    assert parameters(RequestScope) == expected
    assert set(RequestOptions.__annotations__) == set(expected)


def test_options_of_addresses() -> None:
    options = listed("Options follow a `?`")
    for scheme, parse, url in (
        ("memcache", memcache_parts, "memcache://host?no_such=1"),
        ("memcaches", memcache_parts, "memcaches://host?no_such=1"),
        ("datastore", DatastoreStore.of_parts, "datastore://?no_such=1"),
    ):
        with pytest.raises(ValueError, match="there are: ") as caught:
            open_url(url, parse)
        there = str(caught.value).rpartition("there are: ")[2].split(", ")
        mine = {f"`{scheme}`", "`memcache`"} if scheme == "memcaches" else {f"`{scheme}`"}
        having = {name for name, option in options.items() if mine & set(option.stores.split(", "))}
        assert having == set(there)
    prefix = options["prefix"].default
    assert open_url("memcache://host", memcache_parts)[1]["prefix"] == prefix
    assert open_url("redis://host", redis_parts).options["prefix"] == prefix
    store = open_url("datastore://", DatastoreStore.of_parts)
    assert (store._prefix, store._kind) == (prefix, options["kind"].default)
    assert float(options["socket_connect_timeout"].default) == CONNECT_TIMEOUT
    assert float(options["socket_timeout"].default) == REPLY_TIMEOUT


def test_options_of_pytest(pytestconfig: pytest.Config) -> None:
    """The guides have them."""
    guides = Page("docs/adoption.md").text + Page("docs/testing.md").text
    ours = {name for name in pytestconfig._parser._inidict if name.startswith("userlock_")}
    assert ours == set(re.findall(r"^(userlock_\w+) = ", guides, re.MULTILINE))
    options = set(re.findall(r"--(userlock-[a-z-]+)", guides))
    assert options == {"userlock-baseline", "userlock-baseline-write", "userlock-report"}
    for name in options:
        pytestconfig.getoption(f"--{name}")
