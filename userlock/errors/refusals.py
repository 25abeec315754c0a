"""Writes that Datastore refused, entities that are gone, and objects that are out of date."""

from __future__ import annotations

from typing import Any

from userlock.errors.base import UserLockError


class WriteNotFenced(UserLockError):
    """A write would have left the process unfenced, and was not sent.

    It has no ticket: it came to the commit by a way that the library does not
    know. Or it cannot be fenced, as nobody could tell whether the entity has
    changed since it was read. Nothing is stored; of a transaction, nothing at
    all. Other writes of one commit are not affected.

    Attributes:
        key: the entity's `ndb.Key`, incomplete or None where its id was not allocated yet; None
            for an RPC.
        lock_id: the lock that guards it; None where that is not known.
        put_at: where it was put or deleted; for a write without a ticket, where it was sent.
    """

    def __init__(
        self,
        *,
        key: Any,
        kind: str = "",
        lock_id: str | None = None,
        put_at: object | None,
        deleting: bool = False,
        reason: str,
        remedy: str,
    ) -> None:
        what = repr(key) if key is not None else f"a new {kind}"
        lines = [f"{what} was not {'deleted' if deleting else 'put'}: {reason}."]
        if lock_id is not None:
            lines.append(f"  lock id: {lock_id!r}")
        lines.append(f"  {'deleted at' if deleting else 'put at'}: {put_at or 'not known'}")
        lines.append(f"  To mend it: {remedy}.")
        super().__init__("\n".join(lines))
        self.key = key
        self.lock_id = lock_id
        self.put_at = put_at

    @classmethod
    def without_ticket(cls, *, key: Any, put_at: object | None, deleting: bool) -> WriteNotFenced:
        """Return the error of a write that came to the commit by a way that is not known."""
        return cls(
            key=key,
            put_at=put_at,
            deleting=deleting,
            reason=(
                "it came to the commit past `put` and `delete` of its model, so nothing is known "
                "of what it builds on"
            ),
            remedy=(
                "write it with `entity.put()`, `key.delete()` and the functions for several. If "
                "you do, this google-cloud-ndb is not known to userlock: 2.3 to 2.7 are tested, "
                "and `userlock doctor --datastore` tries yours"
            ),
        )

    @classmethod
    def unknown_rpc(cls, name: str) -> WriteNotFenced:
        """Return the error of an RPC of Datastore's that the library does not know."""
        error = cls(key=None, put_at=None, reason="", remedy="")
        error.args = (
            f"{name!r} of Datastore's stub is not known to userlock, so it is not let through: "
            f"it might write. Install a newer userlock",
        )
        return error


class StaleWriteError(UserLockError):
    """The write was refused at the Datastore commit: the entity had changed since it was read.

    Nothing was overwritten. Start again from the read.

    Limit: when the reply to a put is lost, it is sent again, and meets its own
    write. A model with a `WriteIdProperty` recognises that; for others this
    error is raised, with `may_have_landed`, although the write may be there.
    Never the other way round.

    Attributes:
        key: the entity's `ndb.Key`.
        read_version: the version the entity had when it was read.
        found_version: the version the server holds now (0 if it did not say).
        read_at: where the entity was read.
        put_at: where it was put.
        lock_id: the lock that should have prevented this.
        others_landed: how many other writes of the same commit have landed (a `put_multi` is
            sent in commits of up to 500).
        may_have_landed: whether what it met may be its own write, from an earlier try whose
            reply was lost. Look before you repeat the request: it would be applied twice.
    """

    _problem = "was written by somebody else since it was read"
    _remedy = _remedy_without_lock = "run the request again from its read"

    def __init__(
        self,
        *,
        key: Any,
        lock_id: str | None,
        read_version: int,
        found_version: int,
        read_at: object | None,
        put_at: object | None,
        deleting: bool = False,
        others_landed: int = 0,
        may_have_landed: bool = False,
        locked: bool = True,
    ) -> None:
        lines = [
            f"{key!r} {self._problem}, so this write was refused and nothing was overwritten.",
            f"  lock id: {lock_id!r}",
        ]
        if read_version:
            lines.append(f"  read at: {read_at or 'not known'} (version {read_version})")
        found = f" (the server has version {found_version})" if found_version else ""
        lines.append(f"  {'deleted at' if deleting else 'put at'}: {put_at or 'not known'}{found}")
        if others_landed:
            lines.append(f"  others: {others_landed} other writes of its commit have landed")
        if may_have_landed:
            lines.append(
                "  in doubt: the reply to an earlier try was lost, and what was met may be that "
                "one's own write; look before you run the request again"
            )
        remedy = self._remedy if locked else self._remedy_without_lock
        lines.append(f"  To mend it: {remedy}.")
        super().__init__("\n".join(lines))
        self.key = key
        self.lock_id = lock_id
        self.others_landed = others_landed
        self.may_have_landed = may_have_landed
        self.read_version = read_version
        self.found_version = found_version
        self.read_at = read_at
        self.put_at = put_at


class EntityExistsError(StaleWriteError):
    """A new entity was put under a key that exists already; the existing one is unchanged.

    Either two requests created it at once and the other one won, or the code
    makes a new object where it should read the one that is there.
    """

    _problem = "exists already, and a new object was put under its key"
    _remedy = (
        "read it first and create it only when it is missing, under the lock; a model whose "
        "entities are meant to be overwritten unread says `_overwrites = True`"
    )
    _remedy_without_lock = (
        "read it first and create it only when it is missing, in one transaction; a model whose "
        "entities are meant to be overwritten unread says `_overwrites = True`"
    )


class CommitInDoubt(UserLockError):
    """The reply to a commit was lost, and whether it was applied is not known.

    Of a transaction: it was applied as a whole or not at all. ndb would run the
    function again, and perhaps apply it twice; here it is not run again. A
    model with a `WriteIdProperty`, or an entity under an automatic id among
    those that the transaction writes, lets the library find out by itself.

    Of a new entity under an automatic id, put outside of transactions: it is
    there, under an id that is not known, or it is not. ndb would send it
    again, and perhaps make it twice; here it is not sent again.

    Look at what is stored before you repeat the request.

    Attributes:
        key: the `ndb.Key` of the entity, or of one of those that the transaction writes; without
            an id (or None) where Datastore was to allocate it.
        lock_id: the lock that guards it, if one does.
        put_at: where it was put or deleted.
    """

    def __init__(
        self,
        *,
        key: Any,
        kind: str,
        lock_id: str | None,
        put_at: object | None,
        deleting: bool = False,
    ) -> None:
        verb = "deleted" if deleting else "put"
        what = repr(key) if key is not None else f"a new {kind}"
        super().__init__(
            f"the reply to a commit was lost, and whether it was applied is not known. Perhaps "
            f"among others, it has {verb} {what}.\n"
            f"  lock id: {lock_id!r}\n"
            f"  {verb} at: {put_at or 'not known'}\n"
            f"  To mend it: look at what is stored before you run the request again."
        )
        self.key = key
        self.lock_id = lock_id
        self.put_at = put_at


class EntityNotFound(UserLockError, LookupError):
    """The entity was deleted before `fetch_under_user_write_lock` could lock it.

    Attributes:
        key: the key that was looked up.
    """

    def __init__(self, key: Any) -> None:
        super().__init__(f"{key!r} no longer exists in Datastore")
        self.key = key


class StaleObjectUsed(UserLockError):
    """An attribute was read from an object that is out of date: another one was put since.

    Raised only where the setting `stale_objects` is `raise`.

    Attributes:
        key: the entity's `ndb.Key`.
        lock_id: the lock that guards it (None for models of another policy).
        read_at: where the object was read.
        newer_put_at: where another object of the same entity was put.
        used_at: where the attribute was read.
    """

    def __init__(
        self,
        *,
        key: Any,
        lock_id: str | None,
        read_at: object | None,
        newer_put_at: object | None,
        used_at: object | None,
    ) -> None:
        super().__init__(
            f"An object of {key!r} was used after another object of that entity was put, so what "
            f"it says is out of date.\n"
            f"  read at: {read_at or 'not known'}\n"
            f"  the other one put at: {newer_put_at or 'not known'}\n"
            f"  used at: {used_at or 'not known'}\n"
            f"  To mend it: read the entity once and pass that object on, or read it again."
        )
        self.key = key
        self.lock_id = lock_id
        self.read_at = read_at
        self.newer_put_at = newer_put_at
        self.used_at = used_at
