"""Every error the library raises, under one base.

    UserLockError
    ├── ConfigurationError              wrong set-up or call
    │   ├── NoService                   no lock service is configured
    │   ├── NoScope                     acquire_lock() outside a scope, or after its end
    │   └── LockIdError                 an entity without a lock id
    ├── LockError                       concerns one lock (lock_id)
    │   ├── LockTimeout                 not free in time; names the holder
    │   │   └── TooManyWaiting          enough callers of the process wait already
    │   ├── LockServiceUnavailable      no answer, and outage="fail"
    │   ├── DeadlockDetected            the wait would complete a deadlock cycle
    │   ├── EventLoopBlocked            `with` in a coroutine, and the lock is not free
    │   └── LockNotHeld                 release or extension without the lock
    ├── WriteViolation                  not allowed by the write policy
    │   ├── ReadWithoutLock             read before the lock, put under it
    │   ├── PutWithoutLock              no lock at all
    │   ├── PutAfterRelease             read under the lock, put after it
    │   ├── ReadUnderEarlierTenure      the lock was released and taken again
    │   ├── LeaseRanOut                 the lease ended before the put
    │   ├── LeaseWasLost                the store or an operator ended the lease
    │   ├── CreatedWithoutLock          a new entity, no lock
    │   ├── DeletedWithoutLock          a delete, no lock
    │   ├── LockIdChanged               the entity moved to another user
    │   ├── LockIdMissing               no lock id; also a LockIdError
    │   ├── StaleObjectPut              an older object put after a newer one
    │   ├── WriteAfterCommit            written in call_on_commit()
    │   ├── PartialEntityPut            from a projection query
    │   ├── NotInTransaction            IN_TRANSACTION, written outside
    │   ├── WrongTransaction            IN_TRANSACTION, read elsewhere
    │   ├── ImmutableEntityRewritten    WRITE_ONCE, put again
    │   ├── ReadOnlyModelWritten        NEVER_WRITTEN, put or deleted
    │   ├── BatchOnlyModelWritten       BATCH_ONLY, written by other work
    │   ├── AbstractModelWritten        ABSTRACT has no entities
    │   └── StructuredModelWritten      STRUCTURED_ONLY has no entities
    ├── StaleWriteError                 refused: changed since it was read
    │   └── EntityExistsError           refused: a new object of an existing entity
    ├── NotUnique                       refused: another entity has the value
    ├── CommitInDoubt                   the reply to a commit was lost
    ├── WriteNotFenced                  cannot be fenced, so it was not sent
    ├── EntityNotFound                  deleted before it could be locked
    ├── JobError                        concerns a job of the outbox (job)
    │   ├── JobArgumentsRefused         arguments that a row cannot carry
    │   ├── JobStagedOutside            stage() outside of a transaction
    │   ├── UnknownJob                  no such job is registered here
    │   ├── ClaimLost                   another worker has taken the job over
    │   ├── JobTimeLimit                a run took longer than its time_limit
    │   └── DeletionIncomplete          entities of a tree cannot be deleted
    └── FlowError                       concerns a request with an idempotency key (user_id, key)
        ├── IdempotencyKeyRefused       the key is missing or malformed
        ├── IdempotencyKeyReused        the key belongs to another request
        ├── RequestRunning              the same request is running (retry_after)
        ├── FlowTakenOver               another attempt has taken the request over
        ├── FlowChanged                 the request was begun by other code
        ├── ExternalUnavailable         a call of another service has failed, for now (retry_after)
        ├── RequestTooLarge             its body is longer than the view takes (most_bytes)
        ├── RequestIncomplete           its body has not come as a whole
        ├── NotSignedIn                 nobody is signed in who could own the key
        └── NotStorable                 an output or an answer cannot be stored

A `WriteViolation` is a bug in the calling code and is raised before that entity is sent;
docs/models.md says what to do about each. A `StaleWriteError` is a lost race that the lock did not
prevent (its lease ran out, memcached lost it); the entity is unchanged in Datastore and the request
can be tried again from its beginning.
"""

from __future__ import annotations

from typing import Any, Protocol

from userlock.ids import are_plain, quoted, show_key
from userlock.words import counted


class LockHolder(Protocol):
    """The holder of a lock, as errors name it: a `userlock.Holder`."""

    @property
    def token(self) -> str: ...
    @property
    def priority(self) -> str: ...
    @property
    def since(self) -> float: ...
    @property
    def lock_timeout(self) -> float: ...
    @property
    def process(self) -> str: ...
    @property
    def request(self) -> str: ...
    def describe(self) -> str: ...


class UserLockError(Exception):
    """Base of every error in this library. Can be pickled, as process pools do."""

    def __reduce__(self) -> tuple[Any, ...]:
        attributes = {  # a place in the code cannot travel, but as text
            name: str(value) if name.endswith("_at") and value is not None else value
            for name, value in self.__dict__.items()
        }
        return _rebuild, (type(self), self.args, attributes)


def _rebuild(
    kind: type[UserLockError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> UserLockError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


def _describe(problem: str, facts: dict[str, object], remedy: str) -> str:
    """Return a message of several lines: the problem, the facts that there are, the remedy."""
    lines = [f"  {name}: {value}" for name, value in facts.items() if value is not None]
    return "\n".join([f"{problem}.", *lines, f"  To fix it: {remedy}."])


def _entity(key: object, kind: str) -> str:
    return show_key(key) if key is not None else f"a new {kind}"


def _known(lock_id: str | None) -> str:
    return "not known" if lock_id is None else quoted(lock_id)


def _write_site(put_at: object, *, deleting: bool, more: str = "") -> dict[str, object]:
    return {"deleted at" if deleting else "put at": f"{put_at or 'not known'}{more}"}


class ConfigurationError(UserLockError):
    """The library was set up, or called, in a way that cannot work."""


class NoService(ConfigurationError):
    """No lock service is configured."""


class NoScope(ConfigurationError):
    """`acquire_lock` was called where nothing would ever release the lock."""


class LockIdError(ConfigurationError):
    """A model cannot say which lock guards an entity."""

    #: Why not, as a sentence part.
    reason = ""


class LockError(UserLockError):
    """Something about one lock.

    Attributes:
        lock_id: the lock concerned, as it is; the text shows it as configured (`show_ids`).
    """

    def __init__(self, message: str, *, lock_id: str) -> None:
        super().__init__(message)
        self.lock_id = lock_id


class LockTimeout(LockError):
    """The lock was not free within the wait.

    Attributes:
        waited_seconds: how long this caller waited.
        holder: the holder when it was last read; None if it is not known.
    """

    def __init__(self, *, lock_id: str, waited_seconds: float, holder: LockHolder | None) -> None:
        problem = f"was not free after {round(waited_seconds, 2):g} s"
        self._set(lock_id, waited_seconds, holder, problem)

    def _set(
        self, lock_id: str, waited: float, holder: LockHolder | None, problem: str, more: str = ""
    ) -> None:
        by = f"it is held by {holder.describe()}" if holder else "its holder is not known"
        super().__init__(f"lock {quoted(lock_id)} {problem}: {by}{more}", lock_id=lock_id)
        self.waited_seconds, self.holder = waited, holder


class EventLoopBlocked(LockError):
    """A `with` in a coroutine would have to wait for the lock, and block the event loop.

    The holder may be another task of the same loop, which could not release it.
    """

    def __init__(self, *, lock_id: str) -> None:
        super().__init__(
            f"lock {quoted(lock_id)} is not free, and to wait for it here would block the event "
            f"loop. To fix it: use `async with userlock.global_lock(…):`, or run the code in a "
            f"thread (`await asyncio.to_thread(…)`)",
            lock_id=lock_id,
        )


class TooManyWaiting(LockTimeout):
    """The lock is held, and as many callers of this process wait for it as may (`max_waiting`).

    Raised at once. A caller that asks again at once gets the same answer again.

    Attributes:
        waiting: the number of callers of this process that wait for it.
        waited_seconds: the time since the call.
        holder: the holder that one of them met last; None if it is not known.
        retry_after: the seconds after which to try again: by then these callers have been
            served, if holds last as long as usual.
    """

    def __init__(
        self,
        *,
        lock_id: str,
        waiting: int,
        waited_seconds: float,
        holder: LockHolder | None,
        retry_after: int,
    ) -> None:
        calls = "1 caller waits" if waiting == 1 else f"{waiting} callers wait"
        most = "which is as many as may (max_waiting)"
        problem = f"is not free, and {calls} for it in this process, {most}"
        more = f". Try again in {retry_after} s"
        self._set(lock_id, waited_seconds, holder, problem, more)
        self.waiting, self.retry_after = waiting, retry_after


class LockServiceUnavailable(LockError):
    """The lease store did not answer and the outage policy is to fail.

    Attributes:
        reason: what the store's client said.
    """

    def __init__(self, *, lock_id: str, reason: str) -> None:
        super().__init__(
            f"lock {quoted(lock_id)}: the lease store is unavailable ({reason})", lock_id=lock_id
        )
        self.reason = reason


class DeadlockDetected(LockError):
    """Waiting for the lock would complete a deadlock cycle.

    The request of the cycle that began to wait last gets this error; the others go on. Code that
    takes several locks with `global_locks([…])`, or always in the same order, cannot deadlock.

    Attributes:
        cycle: each lock of the cycle with a description of its holder, from `lock_id` on.
    """

    def __init__(self, *, lock_id: str, cycle: tuple[tuple[str, str], ...]) -> None:
        links = ", ".join(f"{quoted(each)} is held by {who}" for each, who in cycle)
        if len(cycle) > 1:
            links += ", which waits for the next one in turn"
            fix = "Take the locks with userlock.global_locks([...]), or always in the same order"
        else:
            fix = "Leave the outer scope's block first, or take the lock in this scope only"
        super().__init__(
            f"waiting for lock {quoted(lock_id)} would never end: {links}. To fix it: {fix}",
            lock_id=lock_id,
        )
        self.cycle = cycle


class LockNotHeld(LockError):
    """The lock to release, extend or yield is not held (any more)."""


# --- violations: the write is a mistake in the calling code --------------------------------


class WriteViolation(UserLockError):
    """A write that its model's policy does not allow. The entity was not sent to Datastore.

    Other entities of one `put_multi` that come before it may have been.

    Attributes:
        key: the entity's `ndb.Key` (None for a new entity whose id is not yet allocated).
        kind: the entity's kind.
        lock_id: the lock that guards the entity (None when a bare key does not tell, and for
            models of another policy than the user's lock).
        policy: that other policy, in words; empty under the user's lock.
        read_at: where the entity was read (None for new entities and deletes).
        put_at: where it was about to be put or deleted.
        logged: whether it has been logged. Code that catches it need not log its text again.
    """

    logged = False
    #: What is wrong, as a sentence part; each class has its own.
    problem = "was put in a way its lock does not allow"
    #: What to do about it.
    remedy = "take the lock before the read"

    def __init__(
        self,
        *,
        key: Any,
        kind: str,
        lock_id: str | None,
        policy: str = "",
        read_at: object | None,
        put_at: object | None,
        detail: str = "",
        deleting: bool = False,
    ) -> None:
        guard = {"write policy": policy} if policy else {"lock id": _known(lock_id)}
        facts = {**guard, "read at": read_at, **_write_site(put_at, deleting=deleting)}
        problem = f"{_entity(key, kind)} {self.problem}{f' ({detail})' if detail else ''}"
        super().__init__(_describe(problem, facts, self.remedy))
        self.key, self.kind = key, kind
        self.lock_id, self.policy = lock_id, policy
        self.read_at, self.put_at = read_at, put_at


class ReadWithoutLock(WriteViolation):
    """The entity was read before the lock was taken, then put under it."""

    problem = "was read without its lock and then put under it, so the read may be out of date"
    remedy = (
        "read it again under the lock, take the lock before the first read, or use "
        "fetch_under_user_write_lock(entity)"
    )


class PutWithoutLock(WriteViolation):
    """The entity was read and put with no lock at all, or put where its lock is not held."""

    problem = "was read and put without its lock"
    remedy = "wrap the read and the put in `with userlock.global_lock(lock_id):`"


class PutAfterRelease(WriteViolation):
    """The entity was read under the lock and put after it was released."""

    problem = "was read under its lock but put after the lock was released"
    remedy = "move the put inside the `with` block"


class ReadUnderEarlierTenure(WriteViolation):
    """The lock was released and taken again between the read and the put."""

    problem = (
        "was read under an earlier tenure of its lock: the lock was released and taken again "
        "since, and others may have written in between"
    )
    remedy = "read it again after taking the lock again, or hold the lock from read to put"


class LeaseRanOut(WriteViolation):
    """The lease was over before the put."""

    problem = "was written after the lease on its lock ran out, so another request may hold it"
    remedy = (
        "do less work under the lock, or ask for a longer lease: "
        "global_lock(lock_id, lock_timeout=seconds)"
    )


class LeaseWasLost(WriteViolation):
    """The lease had been found lost before the put: evicted, forgotten, taken or broken."""

    problem = "was written after its lock had been lost, so another request may hold it"
    remedy = "run the request again from its read; the detail says what became of the lease"


class CreatedWithoutLock(WriteViolation):
    """A new entity was put without the lock."""

    problem = "was created without its lock"
    remedy = (
        "wrap the creation in `with userlock.global_lock(lock_id):`, from the look-up that found "
        "it missing to the put"
    )


class DeletedWithoutLock(WriteViolation):
    """An entity was deleted without the lock."""

    problem = "was deleted without its lock"
    remedy = "wrap the delete in `with userlock.global_lock(lock_id):`"


class StaleObjectPut(WriteViolation):
    """Two objects of one entity: the older one was put after the newer one."""

    problem = (
        "was put from an older object after another object of the same entity had been put, "
        "which would undo that write"
    )
    remedy = "read the entity once and pass that object on, or read it again before this put"


class WriteAfterCommit(WriteViolation):
    """A write in a transaction that is over already: ndb would drop it in silence.

    Raised whatever the enforcement.
    """

    problem = "was written in a transaction that was over already, so it would be lost"
    remedy = "write it after ndb.transaction() has returned, not in a call_on_commit() callback"


class PartialEntityPut(WriteViolation):
    """An entity of a projection query was put: the properties it lacks would be wiped."""

    problem = "comes from a projection query, so putting it would wipe what was not read"
    remedy = "get the whole entity by its key, under the lock, and put that"


class LockIdChanged(WriteViolation):
    """The entity was read as one user's, and put as another's, without both users' locks."""

    problem = "belongs to another user than when it was read, and both their locks are needed"
    remedy = (
        "read it and put it under `with userlock.global_locks([old_lock_id, new_lock_id]):`; or "
        "if it was not meant to move, leave alone what names its lock"
    )


class LockIdMissing(WriteViolation, LockIdError):
    """An entity that does not say which lock guards it was put or deleted.

    Attributes:
        reason: what it lacks, in words; empty if that is not known.
    """

    problem = "does not say which lock guards it"
    remedy = "see that what names its lock is set before it is put, or take that from elsewhere"

    def __init__(self, *, detail: str = "", **facts: Any) -> None:
        super().__init__(detail=detail, **facts)
        self.reason = detail


class NotInTransaction(WriteViolation):
    """An entity that is written in transactions only was put or deleted outside of any."""

    problem = "was written outside of a transaction"
    remedy = "read and write it in one function under `@userlock.transactional`"


class WrongTransaction(WriteViolation):
    """An entity that is written in transactions only was not read in the one it is put in."""

    problem = "was not read in the transaction that it is put in, which therefore protects nothing"
    remedy = "get it again inside the transaction, and change that object"


class ImmutableEntityRewritten(WriteViolation):
    """An entity that is written once was put again."""

    problem = "is written once, and was put again"
    remedy = "make a new entity; or give the model another policy if its entities do change"


class ReadOnlyModelWritten(WriteViolation):
    """An entity that is never written was put or deleted."""

    problem = "is never written here"
    remedy = "leave it alone; or give the model the policy by which it is written"


class BatchOnlyModelWritten(WriteViolation):
    """An entity that is written by batch work only was put or deleted by something else."""

    problem = "is written by batch work only"
    remedy = (
        "write it in a task or cron job; in a script, say `with userlock.scope(priority='batch'):`"
    )


class AbstractModelWritten(WriteViolation):
    """An entity of an abstract class was put or deleted."""

    problem = "is of an abstract class, which has no entities"
    remedy = "put an entity of a subclass; or give the class a policy if it does have entities"


class StructuredModelWritten(WriteViolation):
    """An entity of a class that is for structured properties only was put or deleted."""

    problem = "is of a class that is for values of structured properties, and has no entities"
    remedy = "put the entity that it is part of; or give the class a policy if it has entities"


# --- writes that were refused, or are in doubt ----------------------------------------------


class WriteNotFenced(UserLockError):
    """A write would have left the process unfenced, and was not sent.

    It came to the commit by a way that the library does not know, or nobody could tell whether the
    entity has changed since it was read. Nothing is stored; of a transaction, nothing at all. Other
    writes of one commit are not affected.

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
        problem = f"{_entity(key, kind)} was not {'deleted' if deleting else 'put'}: {reason}"
        known = None if lock_id is None else _known(lock_id)
        facts = {"lock id": known, **_write_site(put_at, deleting=deleting)}
        super().__init__(_describe(problem, facts, remedy))
        self.key, self.lock_id, self.put_at = key, lock_id, put_at

    @classmethod
    def without_ticket(
        cls, *, key: Any, put_at: object | None, deleting: bool, rival: type | None = None
    ) -> WriteNotFenced:
        """Return the error of a write that came to the commit by a way that is not known.

        `rival`: the class of its kind, if that is no model of userlock.
        """
        reason = (
            "it came to the commit past `put` and `delete` of its model, so nothing is known of "
            "what it builds on"
        )
        remedy = (
            "write it with `entity.put()`, `key.delete()` and the functions for several. If you "
            "do, this google-cloud-ndb is not known to userlock: 2.3 to 2.7 are tested, and "
            "`userlock doctor --datastore` tries yours"
        )
        if rival is not None:
            name = f"{rival.__module__}.{rival.__qualname__}"
            reason = f"{name} has the kind of a userlock model, and is none"
            remedy = (
                "derive it from `userlock.Model` or `userlock.UserModel`, or give it a kind of its "
                "own by `_get_kind()`"
            )
        return cls(key=key, put_at=put_at, deleting=deleting, reason=reason, remedy=remedy)

    @classmethod
    def unknown_rpc(cls, name: str) -> WriteNotFenced:
        """Return the error of an RPC of Datastore's that the library does not know."""
        error = cls(key=None, put_at=None, reason="", remedy="")
        error.args = (
            f"{name!r} of Datastore's stub is not known to userlock, so it is not let through: "
            f"it might write. Install a newer userlock",
        )
        return error


_LOOK_FIRST = "look at what is stored before you run the request again"


class StaleWriteError(UserLockError):
    """The write was refused at the Datastore commit: the entity had changed since it was read.

    Nothing was overwritten. Start again from the read.

    Limit: when the reply to a put is lost, it is sent again, and meets its own write. A model with
    a `WriteIdProperty` recognises that; for others this error is raised, with `may_have_landed`,
    although the write may be there. Never the other way round.

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

    _problem = "was written since it was read"
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
        found = f" (the server has version {found_version})" if found_version else ""
        facts: dict[str, object] = {
            "lock id": _known(lock_id),
            "read at": f"{read_at or 'not known'} (version {read_version})"
            if read_version
            else None,
            **_write_site(put_at, deleting=deleting, more=found),
        }
        if others_landed:
            have = "has" if others_landed == 1 else "have"
            facts["others"] = f"{counted(others_landed, 'other write')} of its commit {have} landed"
        outcome = "so this write was refused and nothing was overwritten"
        problem = f"{show_key(key)} {self._problem}, {outcome}"
        remedy = self._remedy if locked else self._remedy_without_lock
        if may_have_landed:
            lost = "the reply to an earlier attempt was lost, and the write it met may be its own"
            facts["in doubt"], remedy = lost, _LOOK_FIRST
        super().__init__(_describe(problem, facts, remedy))
        self.key, self.lock_id = key, lock_id
        self.others_landed, self.may_have_landed = others_landed, may_have_landed
        self.read_version, self.found_version = read_version, found_version
        self.read_at, self.put_at = read_at, put_at


class EntityExistsError(StaleWriteError):
    """A new entity was put under a key that exists already; the existing one is unchanged.

    Two requests created it at once, or the code makes a new object where it should read one.
    """

    _problem = "exists already, and a new object was put under its key"
    _remedy, _remedy_without_lock = (
        f"read it first and create it only when it is missing, {safely}; a model whose "
        f"entities are meant to be overwritten unread says `_overwrites = True`"
        for safely in ("under the lock", "in one transaction")
    )


class NotUnique(UserLockError):
    """The write was refused: another entity has a value that only one may have.

    Nothing of it is stored; of a transaction, nothing at all. Other writes of one `put_multi`
    are not affected.

    Attributes:
        key: the entity's `ndb.Key`, incomplete or None if its id was not allocated yet.
        constraint: the name of the constraint: the model's kind, and the properties.
        value: the value, in words.
        holder: the `ndb.Key` of the entity that has it.
        put_at: where the entity was put.
    """

    def __init__(
        self,
        *,
        key: Any,
        kind: str,
        constraint: str,
        value: str,
        holder: Any,
        put_at: object | None,
    ) -> None:
        facts = {
            "constraint": constraint,
            "value": value if are_plain() else "not shown",
            "of": show_key(holder),
            **_write_site(put_at, deleting=False),
        }
        remedy = (
            "choose another value, or give the other entity another one; "
            "userlock.constraints.put_as_copy() finds the next free name"
        )
        problem = f"{_entity(key, kind)} was not put: another entity has its value"
        super().__init__(_describe(problem, facts, remedy))
        self.key, self.put_at = key, put_at
        self.constraint, self.value, self.holder = constraint, value, holder


class CommitInDoubt(UserLockError):
    """The reply to a commit was lost, and whether it was applied is not known.

    Of a transaction: it was applied as a whole or not at all. ndb would run the function again, and
    perhaps apply it twice; here it is not run again. A model with a `WriteIdProperty`, or an entity
    under an automatic id among those that the transaction writes, lets the library find out.

    Of a new entity under an automatic id, put outside of transactions: it is there, under an id
    that is not known, or it is not. ndb would send it again, and perhaps make it twice; here it is
    not sent again.

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
        problem = (
            f"the reply to a commit was lost, and whether it was applied is not known. Perhaps "
            f"among others, it has {'deleted' if deleting else 'put'} {_entity(key, kind)}"
        )
        facts = {"lock id": _known(lock_id), **_write_site(put_at, deleting=deleting)}
        super().__init__(_describe(problem, facts, _LOOK_FIRST))
        self.key, self.lock_id, self.put_at = key, lock_id, put_at


class EntityNotFound(UserLockError, LookupError):
    """The entity was deleted before `fetch_under_user_write_lock` could lock it.

    Attributes:
        key: the key that was looked up.
    """

    def __init__(self, key: Any) -> None:
        super().__init__(f"{show_key(key)} no longer exists in Datastore")
        self.key = key


class JobError(UserLockError):
    """Something about one job of the outbox.

    Attributes:
        job: the name of the job.
    """

    def __init__(self, message: str, *, job: str) -> None:
        super().__init__(message)
        self.job = job


class JobArgumentsRefused(JobError, ValueError):
    """The arguments of a job are no JSON, or too long for its row. Nothing was staged."""


class JobStagedOutside(JobError, RuntimeError):
    """A job was staged where no transaction could carry it. Nothing was staged."""


class UnknownJob(JobError, LookupError):
    """A row names a job that this process has not registered."""


class ClaimLost(JobError):
    """Another worker has taken a job over, so this one must not finish it.

    A job of `transactional=True` has written nothing then. Of another job, both have run.
    """


class JobTimeLimit(JobError):
    """A run of a job has taken longer than its `time_limit`, and was ended."""


class DeletionIncomplete(JobError):
    """Entities of a deleted tree cannot be deleted. The others are gone; the job runs again."""


class FlowError(UserLockError):
    """Something about one request with an idempotency key.

    Attributes:
        user_id: the owner of the key, a lock id.
        key: the idempotency key.
    """

    def __init__(self, message: str, *, user_id: str = "", key: str = "") -> None:
        super().__init__(message)
        self.user_id = user_id
        self.key = key


class IdempotencyKeyRefused(FlowError, ValueError):
    """The idempotency key is missing, or has another form than the API documents."""


class IdempotencyKeyReused(FlowError):
    """The key belongs to a request with another method, path or other parameters."""


class RequestRunning(FlowError):
    """The same request is running.

    Attributes:
        retry_after: the seconds after which to try again.
    """

    def __init__(self, message: str, *, user_id: str, key: str, retry_after: int) -> None:
        super().__init__(message, user_id=user_id, key=key)
        self.retry_after = retry_after


class FlowTakenOver(FlowError):
    """Another attempt has taken the request over, so this one must not go on.

    It has committed nothing since. Sent again, the request gets the answer of the other one.
    """


class FlowChanged(FlowError):
    """An unfinished request was begun by other code: its stored points are not those of this code.

    Nothing was run. A deploy has renamed, removed or reordered a phase.
    """


class ExternalUnavailable(FlowError):
    """A call of another service has failed, for now. The request is unfinished, and may be sent
    again.

    Attributes:
        retry_after: the seconds after which to try again.
    """

    def __init__(self, message: str, *, user_id: str, key: str, retry_after: int) -> None:
        super().__init__(message, user_id=user_id, key=key)
        self.retry_after = retry_after


class RequestTooLarge(FlowError):
    """The body of a request with an idempotency key is longer than its view takes (`max_bytes`).

    Nothing was run. Neither the owner nor the key was looked for: both are empty.

    Attributes:
        most_bytes: the most that the view takes.
    """

    def __init__(self, most_bytes: int) -> None:
        super().__init__(
            f"the body of a request has more than {most_bytes:,} bytes. To fix it: send less, or "
            f"give its view max_bytes="
        )
        self.most_bytes = most_bytes


class RequestIncomplete(FlowError):
    """The body of a request with an idempotency key has not come as a whole.

    Its client is gone, and sends it again; or the framework has no length by which to read it.
    Nothing was run. Both the owner and the key are empty.
    """


class NotSignedIn(FlowError):
    """`user=` has returned None or an empty text: nobody is signed in who could own the key.

    Nothing was run. Both the owner and the key are empty.
    """

    def __init__(self, message: str = "nobody is signed in") -> None:
        super().__init__(message)


class NotStorable(FlowError, TypeError):
    """An output or an answer cannot be stored, so it could not be given a second time."""
