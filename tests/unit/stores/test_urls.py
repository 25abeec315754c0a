"""No message about a store's URL shows its password, whatever the URL looks like."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import userlock
from userlock.admin.command import Console
from userlock.cli import main
from userlock.contrib.wsgi import UserLockMiddleware
from userlock.stores import MemcacheStore
from userlock.stores.memcache import store as memcache_store
from userlock.stores.redis import url as redis_url
from userlock.stores.urls import SCHEMES, open_store, shown_url
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
    password = draw(_passwords)
    shape = draw(st.sampled_from(_SHAPES))
    scheme, begin = draw(_schemes), draw(_begins)
    return shape.format(scheme=scheme, begin=begin, password=password, host=HOST), password


def chain(error: BaseException | None) -> Iterator[BaseException]:
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


@pytest.mark.parametrize("url", ["redis://:a%40b%2Fc%3Fd%23e@h", "valkey://:p!$^*<>ü@h:1/2"])
def test_a_password_of_any_characters_can_be_given(url: str) -> None:
    open_store(url).close()


@pytest.mark.parametrize(
    ("url", "port"),
    [("redis://h", 6379), ("redis+cluster://h", 6379), ("redis+sentinel://h/s", 26379)],
)
def test_the_usual_port_and_prefix(url: str, port: int) -> None:
    """Another process may name them: both must mean the same locks."""
    named = redis_url.parse(urlsplit(url))
    assert named.addresses == (("h", port),)
    assert named.options["prefix"] == "userlock"
    assert memcache_store.parse(urlsplit("memcache://h"))[1]["prefix"] == "userlock"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis-typo://x", "names no lease store"),
        ("redsi://x", r"\(did you mean redis://\?\)"),
        ("127.0.0.1:11211", "names no lease store"),
        ("memcache://", "must look like"),
        ("memcache:///", "must look like"),
        ("memcache://h:99999", "port does not exist"),
        ("memcache://h:x", "is not a memcached address"),
        ("memcache://h1,h1", "named once each"),
        ("memcache://h1,,h2", "must look like"),
        ("memcache://h?via_proxy=maybe", "via_proxy must be yes or no"),
        ("memcache://h?protocol=binary", "protocol must be meta or text"),
        ("memcache://h?prefix=a&prefix=b", "named twice"),
        ("memcache://h?prefix=team#1", "%23"),
        ("memcache://H1:11211,h1", "named once each"),
        ("appengine://?prefix=a#b", "%23"),
        ("redis://h1,h2", "names several servers"),
        ("redis://h:0", "port 0 does not exist"),
        ("redis://h?socket_timeout=0", "socket_timeout must be"),
        ("redis://h?socket_connect_timeout=nan", "socket_connect_timeout must be"),
        ("redis://h?max_connections=9", "unknown option max_connections"),
        ("redis://h?socket_keepalive=maybe", "socket_keepalive must be true or false"),
        ("redis://h?db=one", "db must be a whole number"),
        ("redis://h/1?db=2", "db is named twice"),
        ("redis://u:a@h?username=v", "username is named twice"),
        ("redis://:a@h?password=b", "password is named twice"),
        ("redis://h?client_name=a%20b", "client_name must be printable"),
        ("rediss://h?ssl_cert_reqs=some", "ssl_cert_reqs must be none, optional or required"),
        ("redis://h?prefix=a&prefix=b", "named twice"),
        ("redis://h?prefix=", "key prefix must be"),
        ("redis://h?wakeups=no", r"unknown option wakeups \(did you mean wake_ups\?\)"),
        ("redis://h?decode_responses=true", "unknown option decode_responses; there are: prefix"),
        ("redis://h?ssl_ca_certs=/a", "ssl_ca_certs needs rediss://"),
        ("valkey://h?ssl_keyfile=/a", "ssl_keyfile needs valkeys://"),
        ("redis://h?prefix=team#1", "%23"),
        ("redis://h/٣", "database must be a number"),
        ("memcache://h?prefix=a%20b", "key prefix"),
        ("memcache://h?timeout=3", "unknown option timeout"),
        ("memcache://h?prefx=a", r"unknown option prefx \(did you mean prefix\?\)"),
        ("rediss://h?ssl_passwort=x", r"did you mean ssl_password\?"),
        ("memory://x", "takes no options"),
        (b"memory://", "is a str, not bytes"),
        ("memcaches:///run/memcached.sock", "has no TLS"),
        ("memcache:///run/a.sock,/run/b.sock", "names several sockets"),
        ("memcaches://host?key=/k.pem", "is the key of cert="),
        ("memcaches://host?ca=/nonexistent.pem", "ca= must be a readable file"),
        ("memcache://host?ca=/nonexistent.pem", "unknown option ca"),
        ("memcache://host/run/memcached.sock", "it must look like memcache://HOST:PORT"),
        ("memcaches://host?cert=/nonexistent.pem", "cert= and key= must be readable files"),
        ("rediss://host?ssl_ca_cert=/a.pem", "did you mean ssl_ca_certs"),
        ("rediss://host?credentials=iam", "is google, or names a provider"),
        ("rediss://host?credentials=json:dumps", "of the type function"),
        ("rediss://host?credentials=nowhere:provider", "there is no module nowhere"),
        ("rediss://host?credentials=", "credentials must be google, or"),
        ("rediss://host?wake_ups=maybe", "wake_ups must be yes or no"),
        ("rediss://host?ssl_ca_certs=/nonexistent.pem", "ssl_ca_certs= must be a readable file"),
        (f"rediss://host?ssl_ca_certs={__file__}", "ssl_ca_certs= must be a readable file"),
        ("rediss://host?ssl_certfile=/nonexistent.pem", "ssl_certfile= and ssl_keyfile= must be"),
        (f"rediss+sentinel://host/app?ssl_keyfile={__file__}", "ssl_certfile=, which is missing"),
        ("redis://:s3cret@host?credentials=google", "and credentials= as well"),
        ("redis://host?credentials=google", "needs rediss://"),
        ("valkey://10.0.0.3?credentials=google", "needs valkeys://"),
        ("rediss://host?credentials=google&ssl_cert_reqs=none", "and the server's certificate"),
        *(
            (
                f"rediss://host?credentials=google&ssl_check_hostname={no}",
                "the server's certificate",
            )
            for no in ("false", "No", "0", "false&ssl_ca_certs=", "false&ssl_ca_path=")
        ),
        ("redis://ann:s3cret@host?prefix=", "key prefix must be"),
        ("redis://host:port/0", "port"),
        ("redis:///0", "names no host"),
        ("redis://", "'redis://': it names no host"),
        ("http://host", "redis://"),
        ("redis+cluster://", "names no host"),
        ("redis+cluster://a:1,:2", "names no host"),
        ("redis+cluster://a:0", "port 0"),
        ("redis+cluster://a/1", "database 0 only"),
        ("redis+cluster://a?db=1", "database 0 only"),
        ("redis+cluster://a?wait_replicas=one", "wait_replicas must be a whole number"),
        ("redis+cluster://a?ssl_ca_certs=/x", r"needs rediss\+cluster://"),
        ("valkey+cluster://a?credentials=google", r"needs valkeys\+cluster://"),
        ("redis+cluster://a?sentinel_password=x", "unknown option sentinel_password"),
        ("redis+clusters://a", "names no lease store"),
        ("memcache+cluster://a", "names no lease store"),
        ("redis://a,b", r"redis\+cluster://"),
        ("redis+sentinel://a,b", "must name the service"),
        ("redis+sentinel://a,b/0/app", "must name the service"),
        ("memcache://ann:s3cret@h:11211", "no user and password"),
        ("memcache://ann:s3cret@h?x=1", "no user and password"),
        ("redis+cluster://h?prefix=a{b", "key prefix"),
        ("redis+cluster://h?prefix=a}b", "key prefix"),
        ("appengine://host", "appengine://.prefix=NAME"),
        ("appengine:///path", "appengine://.prefix=NAME"),
        ("appengine://?prefix=", "a key prefix must"),
        ("appengine://?prefix=a%20b", "a key prefix must"),
        ("appengine://?colour=red", "there are: prefix"),
        ("datastore://p1?ns=a", "unknown option ns; there are: database"),
        ("datastore://p1/db", "must look like datastore://"),
        *((f"datastore://p1?timeout={no}", "timeout must be") for no in ("0", "x", "nan", "61")),
        ("datastore://p1#db", "%23"),
        ("datastore://p1?prefix=", "a key prefix must"),
        ("datastore://p1?kind=", "a kind must"),
        *(
            (f"datastore://p1?namespace={no}", "namespace must be")
            for no in ("a/b", "ü", "__a__", "x" * 101)
        ),
        *((f"datastore://p1?database={no}", "database must be") for no in ("a_b", "a/b")),
    ],
)
def test_a_malformed_url_is_explained(url: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "module", "needs", "says"),
    [
        ("redis://h", "redis", "redis", r"pip install 'userlock\[redis\]'"),
        ("appengine://", "appengine", "google.appengine.api", r"userlock\[appengine\]'"),
        ("datastore://", "datastore", "google.cloud.ndb", "pip install google-cloud-ndb"),
    ],
)
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, module: str, needs: str, says: str
) -> None:
    for name in [name for name in sys.modules if name.startswith(f"userlock.stores.{module}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, needs, None)
    with pytest.raises(ImportError, match=says):
        open_store(url)
