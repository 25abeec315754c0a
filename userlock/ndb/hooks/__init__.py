"""Every touch of google-cloud-ndb's internals, and nothing else.

ndb has no public way to learn the version an entity was read at, to send a
`base_version` with a put, or to refuse a put before it is sent. This room
hooks into the few places where that can be done, and hands what passes there
to a `watch.Handler`. Written against google-cloud-ndb 2.3 to 2.7.

Each place is checked first (`points`): that it is there, takes the parameters,
and makes objects with the attributes that are hooked into. On a release of ndb that moved one, the
import of any name of userlock's fails and says which. That a place still does
what it did is for the tests to see, which run with the oldest and the newest
release; a write that ndb sends past them is noticed all the same
(`watch.Write.not_fenced`).
"""

from __future__ import annotations

from userlock.ndb.hooks.points import check_points

# The others would fail on what is gone as well, but not say what to do.
check_points()

from userlock.ndb.hooks.attributes import watch_attributes
from userlock.ndb.hooks.commits import hook_plain_commits
from userlock.ndb.hooks.creating import Creator
from userlock.ndb.hooks.futures import has_failed, observe, untold_error
from userlock.ndb.hooks.reading import hook_caches, hook_loading
from userlock.ndb.hooks.runtime import (
    cached_entity,
    current_context,
    current_transaction,
    deletes_in_transactions,
    forget_cached,
    id_of,
    in_transaction,
    is_cached,
    is_complete,
    key_of,
    model_of,
    note_in_flight,
    transaction_notes,
    uses_datastore,
    wait_for,
    wait_for_entity,
    wait_for_key,
    when_transaction_ends,
)
from userlock.ndb.hooks.sharing import name_early
from userlock.ndb.hooks.transactions import hook_transactions, note_begun
from userlock.ndb.hooks.values import projection_of, properties_of, reader_of
from userlock.ndb.hooks.writing import hook_deleting, hook_putting
from userlock.ndb.watch import Handler

__all__ = [
    "Creator",
    "cached_entity",
    "current_context",
    "current_transaction",
    "deletes_in_transactions",
    "forget_cached",
    "has_failed",
    "id_of",
    "in_transaction",
    "install",
    "is_cached",
    "is_complete",
    "key_of",
    "model_of",
    "name_early",
    "note_begun",
    "note_in_flight",
    "observe",
    "projection_of",
    "properties_of",
    "reader_of",
    "transaction_notes",
    "untold_error",
    "uses_datastore",
    "wait_for",
    "wait_for_entity",
    "wait_for_key",
    "watch_attributes",
    "when_transaction_ends",
]

_installed: Handler | None = None


def install(handler: Handler) -> None:
    """Hook into ndb, once per process."""
    global _installed
    if _installed is not None:
        raise RuntimeError("userlock is hooked into ndb already")
    _installed = handler
    hook_loading(handler)
    hook_caches(handler)
    hook_putting(handler)
    hook_deleting(handler)
    hook_plain_commits()
    hook_transactions(handler)
