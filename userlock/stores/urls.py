"""URLs of stores: the stores, their options, and the text that may be shown of them.

A password that is not percent-encoded ends up in other parts of the URL:

    redis://:pa/ss@host/0       ":pa" is the host, "/ss@host/0" the path
    redis://:pa#ss@host/0       ":pa" is the host, "ss@host/0" the fragment

So only a URL of the usual form is taken apart, and errors show no other part of it than `shown_url`
gives: those of urllib and of clients quote their input.
"""

from __future__ import annotations

import importlib
import re
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

from userlock.lock.store import LeaseStore
from userlock.words import meant

_T = TypeVar("_T")

#: Patterns of an option's values, with words for them.
YES_NO = ("yes|no", "yes or no")
SECONDS = (r"(?=.*[1-9])[0-9]{1,5}(\.[0-9]{1,9})?", "a number of seconds above 0")

#: The schemes of the stores.
SCHEMES = (
    *("appengine", "datastore", "memcache", "memcaches", "memory"),
    *("redis", "rediss", "valkey", "valkeys"),
    *("redis+cluster", "rediss+cluster", "valkey+cluster", "valkeys+cluster"),
    *("redis+sentinel", "rediss+sentinel", "valkey+sentinel", "valkeys+sentinel"),
)

#: The modules of schemes that have not a module of their own.
_MODULES = {"memcaches": "memcache", "rediss": "redis", "valkey": "redis", "valkeys": "redis"}

#: The usual form: one @ at most, before the host, and no #.
_FORM = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*):"
    r"(?://(?:[^\s@/?#\[\]\\]*@)?(?P<place>[^\s@/?#\\]*))?"
    r"(?P<path>/[^\s@?#\\]*)?(?:\?(?P<query>[^\s@#\\]*))?",
    re.IGNORECASE,
)
_HOST = r"(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?"
_HOSTS = re.compile(rf"(?:{_HOST}(?:,{_HOST}){{0,30}})?", re.IGNORECASE)
_DATABASE = re.compile(r"/[0-9]{1,3}")
_PREFIX = re.compile(r"(?:.*&)?(prefix=[\w.:-]{1,80})(?:&.*)?", re.ASCII)
_NAME = re.compile(r"[a-z_]{1,40}")


class AddressError(ValueError):
    """A store's address is malformed. The text has no part of it that may be secret."""


def shown_url(url: object, schemes: Collection[str] = SCHEMES) -> str:
    """Return what may be shown of a store's URL, whatever it is: the hosts, but no credentials.

    Of a URL that is not of the usual form only the scheme, if it is one of `schemes`.
    """
    text = url if isinstance(url, str) else ""
    form = _FORM.fullmatch(text) if text.isprintable() else None
    if form is not None and _HOSTS.fullmatch(form["place"] or ""):
        path, prefix = form["path"] or "", _PREFIX.fullmatch(form["query"] or "")
        database = path if _DATABASE.fullmatch(path) else ""
        rest = f"?{prefix[1]}" if prefix else ""
        return f"{form['scheme']}://{form['place'] or ''}{database}{rest}"
    scheme = text.partition(":")[0].lower()
    return f"{scheme}://…" if scheme in schemes else "…"


def tls_context(
    ca: str, cert: str, key: str, *, names: Sequence[str], password: str = ""
) -> ssl.SSLContext:
    """Return how to check the server's certificate, and the one to show, if there is any.

    `names`: those of the three options, for errors.
    """
    of_ca, of_cert, of_key = names
    if key and not cert:
        raise AddressError(f"{of_key}= is the key of {of_cert}=, which is missing")
    words = f"{of_ca}= must be a readable file with certificates of authorities (PEM)"
    try:
        context = ssl.create_default_context(cafile=ca or None)
        words = (
            f"{of_cert}= and {of_key}= must be readable files with a certificate and its key (PEM)"
        )
        if cert:
            context.load_cert_chain(cert, key or None, lambda: password)  # or OpenSSL would ask
    except OSError:
        raise AddressError(words) from None
    return context


def open_store(url: str) -> LeaseStore:
    """Return the store that a URL names.

    Raises:
        ValueError: the URL is malformed. The text shows neither user nor password.
        ImportError: an extra is missing; the text names it.
    """
    return open_url(url, _store_of)


def _store_of(parts: SplitResult) -> LeaseStore:
    kind = parts.scheme.partition("+")[0]
    # Imported when it is used: some need an extra, and Google's clients take long to import.
    module = importlib.import_module(f"userlock.stores.{_MODULES.get(kind, kind)}")
    store: LeaseStore = module.of_parts(parts)
    return store


def open_url(url: str, make: Callable[[SplitResult], _T], schemes: Collection[str] = SCHEMES) -> _T:
    """Return what `make` returns for the parts of a URL.

    Raises:
        ValueError: the URL is malformed, or `make` refuses it. It has no other error in its chain.
        ImportError: as `make` raises it.
    """
    problem = ""
    try:
        return make(_split(url, schemes))
    except AddressError as error:
        problem = str(error)
    except ImportError:
        raise
    except Exception:
        names = ", ".join(_plain_names(url.partition("?")[2]))
        said = f"; its options are: {names}" if names else ""
        problem = f"the client of the store refuses it{said}"
    # Outside of the handler: the other error may quote the password, also as a context.
    raise ValueError(f"{shown_url(url, schemes)!r}: {problem}")


def _split(url: str, schemes: Collection[str]) -> SplitResult:
    if not isinstance(url, str):
        raise AddressError(
            f"a URL like memcache://127.0.0.1:11211 is a str, not {type(url).__name__}"
        )
    scheme = url.partition(":")[0].lower()
    if scheme not in schemes:
        near = meant(scheme, schemes, "{}://")
        known = ", ".join(f"{name}://" for name in schemes)
        end = f" ({near})" if near else ""
        raise AddressError(f"it names no lease store: it must begin with one of {known}{end}")
    if "#" in url:
        raise AddressError("the text after # would not count; a # in a password or option is %23")
    if not url.isprintable() or _FORM.fullmatch(url) is None:
        raise AddressError(
            "it must look like SCHEME://USER:PASSWORD@HOST:PORT/DB?OPTION=VALUE. In a password or "
            "option @ is %40, / is %2F, ? is %3F, : is %3A and a space is %20"
        )
    return urlsplit(url)


def options_of(
    parts: SplitResult,
    *,
    forms: Mapping[str, tuple[str, str]] | None = None,
    without_default: Collection[str] = (),
    **defaults: str,
) -> dict[str, str]:
    """Return the options of a store's URL by name, with defaults.

    Any other option is an error: passed over, the locks would be elsewhere than meant.
    """
    named = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(named)
    if len(options) < len(named):
        raise AddressError("an option is named twice")
    known = [*defaults, *without_default]
    if not options.keys() <= set(known):
        unknown = [name for name in _plain_names(parts.query) if name not in known]
        near = meant(unknown[0], known) if unknown else ""
        raise AddressError(
            f"unknown option {', '.join(unknown) or '…'}{f' ({near})' if near else ''}; "
            f"there are: {', '.join(known)}"
        )
    for name, (pattern, words) in (forms or {}).items():
        if name in options and not re.fullmatch(pattern, options[name]):
            raise AddressError(f"{name} must be {words}")
    return defaults | options


def _plain_names(query: str) -> list[str]:
    """Return the names of options, without those that may be a part of a value."""
    named = (each.partition("=") for each in query.split("&"))
    return [name for name, equals, _ in named if equals and _NAME.fullmatch(name)][:20]
