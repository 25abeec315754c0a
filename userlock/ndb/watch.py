"""What passes through the hooks, and who is told. No word of ndb's in here."""

from __future__ import annotations

from typing import Any, Protocol


class Write(Protocol):
    """One put or delete on its way to Datastore."""

    #: The version the server must still have, or 0 for any. Below 0: a fingerprint of what it
    #: must still have.
    base_version: int
    #: What the object stands for since it was read or put, in the terms of `base_version`.
    read_version: int
    #: Whether the server must not have the entity at all.
    must_be_new: bool
    #: Whether it is to overwrite the entity all the same, should there be one.
    may_overwrite: bool
    #: Whether there is a mutation of it, or there is to be none: for the hooks to say.
    carried: bool

    @property
    def by_comparison(self) -> bool:
        """Whether the server cannot be told `base_version`, so that it has to be compared."""
        ...

    @property
    def mark(self) -> str | None:
        """The property whose value no other write has, if there is one."""
        ...

    def landed(self, version: int) -> None:
        """It is in Datastore, as `version`."""
        ...

    def conflicted(
        self, version: int, *, others_landed: int = 0, may_have_landed: bool = False
    ) -> Exception:
        """It was refused; the server has `version` (0: it did not say).

        Args:
            version: as above.
            others_landed: how many other writes of the same commit have landed.
            may_have_landed: whether what it met may be itself, from an earlier try.

        Returns:
            What is raised to whoever put it.
        """
        ...

    def in_doubt(self) -> Exception:
        """Nobody can tell whether its transaction was applied. What this gives is raised."""
        ...

    def trying_again(self) -> None:
        """The attempt that it was part of has failed, and the next one is about to begin.

        What this raises ends the transaction.
        """
        ...

    def overwriting(self) -> None:
        """There is an entity, although it must be new; `may_overwrite`, so it is overwritten."""
        ...

    def about_to_commit(self) -> None:
        """Its transaction is about to commit. What this raises rolls the transaction back."""
        ...

    def begun(self, future: Any) -> None:
        """It is on its way; `future` will have its outcome."""
        ...

    def not_fenced(self) -> Exception | None:
        """What is to be raised where ndb writes it past the hooks; None where it does not."""
        ...

    def too_late(self) -> Exception:
        """Its transaction has been committed already. What this gives is raised."""
        ...


class Handler(Protocol):
    """Who is told what passes the hooks."""

    #: The base class of the entities that are watched.
    tracked: type

    def origin(self) -> object:
        """What the running code holds, for entities that are made of an answer later on."""
        ...

    def place(self) -> object | None:
        """Where the application's code is, for the same; None where that is not captured."""
        ...

    def loaded(
        self, entity: Any, version: int, origin: object | None, place: object | None
    ) -> None:
        """An entity came out of Datastore (or of the global cache).

        Args:
            version: 0 when it is not known.
            origin: what was held when Datastore was asked for it; None when it was not.
            place: where it was asked for, if that is known.
        """
        ...

    def write_of(self, entity: Any) -> Write | None:
        """The write that `entity` is being put under: asked as the put begins."""
        ...

    def cached_is_good(self, entity: Any) -> bool:
        """Whether the context cache may answer with this entity."""
        ...

    def cached_miss_is_good(self, ndb_key: Any) -> bool:
        """Whether the context cache may answer that there is no such entity."""
        ...

    def bypass_global_cache(self) -> bool:
        """Whether look-ups of watched kinds must go to Datastore itself now."""
        ...

    def beginning_transaction(self) -> None:
        """A transaction is about to begin. What was begun before it should land before it."""
        ...

    def deleting(self, ndb_key: Any) -> Write | None:
        """A key of a watched kind is about to be deleted. What this raises stops it."""
        ...
