"""No message about a store's URL shows its password, whatever the URL looks like."""

from __future__ import annotations

import io
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import userlock
from userlock.admin.console import Console
from userlock.cli import main
from userlock.contrib.wsgi import UserLockMiddleware
from userlock.stores import MemcacheStore
from userlock.stores.redis import RedisStore
from userlock.stores.registry import open_store
from userlock.stores.urls import SCHEMES, shown_url
from userlock.testing import ManualClock

HOST = "host.example"

_schemes = st.sampled_from(
    [*SCHEMES, "redsi", "rdis", "Redis", "redis ", "memcached", "mysql", "", "re/dis", "redis:"]
)
_begins = st.sampled_from(["://", ":/", ":", "//", ":///", "", "://[", "://:", ":\\\\"])
#: Characters that end a part of a URL, among others.
_texts = st.text(
    st.sampled_from(list("@:/?#[]%&=;,+ \\\t\n\r'\"\0\x1b\ud800ü\uff0e℀")) | st.characters()
) | st.text(st.sampled_from("abcXYZ019@:/?#%&="))
#: Each contains something that no message says.
_passwords = st.builds("{}Zq7{}".format, _texts, _texts)
_SHAPES = [
    "{scheme}{begin}user:{password}@{host}:6379/0",
    "{scheme}{begin}:{password}@{host}",
    "{scheme}{begin}{password}@{host}/1?prefix=a",
    "{scheme}{begin}user:{password}@{host}:port/0",
    "{scheme}{begin}user:{password}@{host}:99999",
    "{scheme}{begin}user:{password}@",
    "{scheme}{begin}user:{password}@{host},{host}",
    "{scheme}{begin}user:{password}@{host}/zero",
    "{scheme}{begin}user:{password}@{host}?socket_timeout=soon",
    "{scheme}{begin}user:{password}@{host}?no_such=1",
    "{scheme}{begin}user:{password}@{host}?prefix=",
    "{scheme}{begin}{host}?password={password}",
    "{scheme}{begin}{host}/0?password={password}&prefix=a",
    "{scheme}{begin}{host}?prefix=a&password={password}&password=other",
    "{scheme}{begin}{host}?{password}",
    "{scheme}{begin}{host}#{password}",
    "{scheme}{begin}{host}/0?prefix=a#{password}",
]


@st.composite
def urls(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a URL, and the password in it."""
    password = draw(_passwords)
    shape = draw(st.sampled_from(_SHAPES))
    scheme, begin = draw(_schemes), draw(_begins)
    return shape.format(scheme=scheme, begin=begin, password=password, host=HOST), password


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Give an error and all those behind it."""
    if error is not None:
        yield error
        yield from chain(error.__cause__)
        yield from chain(error.__context__)


def shows(text: str, password: str) -> bool:
    part = "Zq7" if "Zq7" in password else password
    forms = (part, password, repr(password)[1:-1], ascii(password)[1:-1])
    return any(form in text for form in forms)


def refusals(url: str) -> Iterator[BaseException]:
    """Give the errors of all that takes a URL, or the URL by mistake."""
    takers: tuple[Callable[[Any], object], ...] = (
        open_store,
        userlock.LockService.from_url,
        lambda url: userlock.LockService.from_url("memory://", fallback=url),
        RedisStore.from_url,
        MemcacheStore,
        userlock.LockService,
        lambda url: userlock.configure(service=url),
        lambda url: UserLockMiddleware(lambda *_: [], service=url),
        lambda url: open_store(url.encode("utf-8", "surrogatepass")),
    )
    for take in takers:
        try:
            take(url)
        except Exception as error:
            yield error


@settings(max_examples=50)
@given(urls())
@example(("redis://:pa@ss/word@host.example", "pa@ss/word"))
@example(("redis://user:1234/ab@host.example", "1234/ab"))
@example(("redis://user:1234#ab@host.example", "1234#ab"))
@example(("redis://user:12?ab=c@host.example", "12?ab=c"))
@example(("redsi://user:Secret@host.example", "Secret"))
def test_no_error_shows_the_password(drawn: tuple[str, str]) -> None:
    url, password = drawn
    for error in refusals(url):
        for each in chain(error):
            assert not shows(f"{each}\n{each!r}", password)
        lines = "".join(traceback.format_exception_only(error))
        assert not shows(lines, password)
    assert not shows(shown_url(url), password)


@settings(max_examples=20)
@given(urls(), st.sampled_from(["holder", "locks", "doctor", "environ", "typo", "early", "value"]))
def test_the_command_line_does_not_show_the_password(drawn: tuple[str, str], how: str) -> None:
    url, password = drawn
    arguments = {
        "holder": ["holder", "ann", "--store", url],
        "locks": ["locks", "--json", f"--store={url}"],
        "doctor": ["doctor", "--store", url],
        "environ": ["holder", "ann"],
        "typo": ["holder", "ann", "--stroe", url, f"--stor={url}"],
        "early": [url, "holder", "ann"],
        "value": ["locks", f"--json={url}", "--interval", url],
    }[how]
    out, err = io.StringIO(), io.StringIO()
    console = Console(io.StringIO(), out, err, {"USERLOCK_STORE": url}, ManualClock())

    def connect(address: str, clock: object) -> userlock.LockService:
        open_store(address)  # nothing is sent
        return userlock.LockService.from_url("memory://", outage="fail")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", err)  # argparse writes there
        main(arguments, console=console, connect=connect)
    assert not shows(out.getvalue() + err.getvalue(), password)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:p@h:1/0", "redis://h:1/0"),
        ("redis://u:p@[::1]:1/0?x=1", "redis://[::1]:1/0"),
        ("memcache://h:1,h:2?prefix=a", "memcache://h:1,h:2?prefix=a"),
        ("redis://u:p@[", "redis://…"),
        ("redis://u:p@h#x", "redis://…"),
        ("redis://u:p/q@h", "redis://…"),
        ("redsi://u:p/q@h", "…"),
        ("datastore://", "datastore://"),
        ("", "…"),
        (None, "…"),
    ],
)
def test_what_is_shown(url: object, shown: str) -> None:
    assert shown_url(url) == shown


def test_the_control_a_url_that_is_shown_whole_would_be_found() -> None:
    url = "redis://user:Secret@h"
    assert shows(f"{url!r} names no host", "Secret")


@pytest.mark.parametrize("url", ["redis://:a%40b%2Fc%3Fd%23e@h", "redis://:p!$^*<>ü@h:1/2?db=3"])
def test_a_password_of_any_characters_can_be_given(url: str) -> None:
    open_store(url).close()
