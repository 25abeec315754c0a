"""Show lock ids, and what contains them: the keys of entities, and the requests of holders.

A lock id may be an e-mail address. Whatever shows one crosses this module: log
lines, texts of errors, `repr`, spans, problem documents, the inspector and the
command line. `userlock.configure(show_ids=…)` sets the form for the process:

               lock id               key                       request
    plain      'ann@example.com'     Key('User', 'ann@…')      POST /users/ann@…
    masked     ***                   Key('User', ***)          POST …
    hashed     #41b0c2f98e6d7a35     Key('User', #41b0…)       POST …

A hash is the first 16 digits of HMAC-SHA256 over the SHA-256 of the id. Its key
is a secret of the app, the same in all its processes and for its operators
(`id_key=` or the environment variable USERLOCK_ID_KEY). Without a key anybody
could try all ids. `userlock holder ID` prints the hash of an id, `userlock
locks` those of listed locks, also of locks that the store names by the SHA-256
of their id.

Limits: attributes (`error.lock_id`, `event.lock_id`), the keys in the store and
the texts of the app's own errors stay as they are.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from userlock.settings import ShowIds
from userlock.words import legible

#: The names of namespaces; Datastore refuses others.
NAMESPACE = re.compile(r"[0-9A-Za-z._-]{0,100}")

#: The longest lock id, in characters: as long as the longest name in a Datastore key.
MAX_CHARACTERS = 1_500
#: How much of a plain id, request or key is shown, in characters.
_SHOWN = 200
_SHOWN_OF_KEY = 2_000
_HIDDEN = "***"
_DIGITS = 16

KEY_VARIABLE = "USERLOCK_ID_KEY"

_METHOD = re.compile(r"(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS)(?= |$)")


class Form(NamedTuple):
    """The form of ids, and the key of the hashes."""

    show: ShowIds
    key: bytes = b""


def form_of(show: ShowIds | str, key: str | bytes | None = None) -> Form:
    """Return the form of that name.

    Args:
        show: `plain`, `masked` or `hashed`.
        key: the key of the hashes; None: the environment's.

    Raises:
        ValueError: an unknown form, or hashes without a key.
    """
    try:
        show = ShowIds(show)
    except ValueError:
        known = ", ".join(repr(each.value) for each in ShowIds)
        raise ValueError(f"show_ids must be one of {known}, not {show!r:.40}") from None
    if show is not ShowIds.HASHED:
        return Form(show)
    secret = os.environ.get(KEY_VARIABLE, "") if key is None else key
    if not isinstance(secret, str | bytes):
        raise TypeError(f"id_key must be str or bytes, not {type(secret).__name__}")
    if not secret:
        raise ValueError(
            f"hashed lock ids need a secret key, as hashes without one can be guessed. To fix it: "
            f"pass id_key=, or set {KEY_VARIABLE} to the same secret in all processes"
        )
    encoded = secret.encode("utf-8", "surrogateescape") if isinstance(secret, str) else secret
    return Form(show, encoded)


_form = Form(ShowIds.PLAIN)


def use(form: Form) -> Form:
    """Show ids in this form from now on, in this process. Return the form before."""
    global _form
    before, _form = _form, form
    return before


def in_use() -> Form:
    """Return the form of ids in this process."""
    return _form


def are_plain() -> bool:
    """Return whether ids are shown as they are."""
    return _form.show is ShowIds.PLAIN


# --- the forms ------------------------------------------------------------------------------


def show(lock_id: str) -> str:
    """Return a lock id as a printable text of at most 200 characters and an ellipsis."""
    hidden = _hidden(lock_id)
    return legible(lock_id, _SHOWN) if hidden is None else hidden


def quoted(lock_id: str) -> str:
    """Return a lock id for a sentence: in quotes, if it is plain."""
    hidden = _hidden(lock_id)
    if hidden is not None:
        return hidden
    return repr(lock_id) if len(lock_id) <= _SHOWN else f"{lock_id[:_SHOWN]!r}…"


def exact(lock_id: str) -> str:
    """Return a lock id for programs: unchanged, if it is plain and not too long to be one."""
    hidden = _hidden(lock_id)
    if hidden is not None:
        return hidden
    return lock_id if len(lock_id) <= MAX_CHARACTERS else show(lock_id)


def show_digest(digest: str) -> str:
    """Return the lock whose id has this SHA-256, in hexadecimal digits, as a store names it."""
    if _form.show is ShowIds.MASKED:
        return _HIDDEN
    if _form.show is ShowIds.HASHED:
        return _hash(digest)
    return legible(f"sha256:{digest}", _SHOWN)


def _hidden(lock_id: str) -> str | None:
    """Return the form of an id that hides it; None if ids are plain."""
    if _form.show is ShowIds.PLAIN:
        return None
    if _form.show is ShowIds.MASKED:
        return _HIDDEN
    return _hash(hashlib.sha256(lock_id.encode("utf-8", "surrogatepass")).hexdigest())


def _hash(digest: str) -> str:
    text = digest.encode("utf-8", "surrogatepass")
    return "#" + hmac.new(_form.key, text, hashlib.sha256).hexdigest()[:_DIGITS]


def show_request(request: str, route_of: Callable[[str], str | None] = lambda _: None) -> str:
    """Return the task of a request, printable.

    Args:
        request: the task. A path may contain ids, so if they are hidden, the method alone counts.
        route_of: returns the route of a request, which contains none, if it is known.
    """
    if _form.show is ShowIds.PLAIN or not request:
        return legible(request, _SHOWN)
    route = route_of(request)
    if route is not None:
        return legible(route, _SHOWN)
    method = _METHOD.match(request)
    return f"{method[0]} …" if method is not None else "…"


def show_key(key: Any) -> str:
    """Return an entity's key. If ids are hidden, so are those in the key, and its namespace."""
    if _form.show is ShowIds.PLAIN:
        return legible(repr(key), _SHOWN_OF_KEY)
    pairs = getattr(key, "pairs", None)
    if not callable(pairs):
        return "a key"
    path = (f"{kind!r}, {None if name is None else show(str(name))}" for kind, name in pairs())
    return f"Key({', '.join(path)})"
