"""Objects that are out of date, found when they are used: the setting `stale_objects`.

To put such an object is a violation of its own (`InternalStomp`). Often it is
only looked at, and what it says is acted on:

    older = key.get()            10 points
    add_points(key, 5)           reads another object, and puts it: 15
    mail(older.points)           still 10

Only within what the puts are remembered for: one tenure of the lock, or one
transaction.
"""

from __future__ import annotations

from typing import Any

from userlock.callsite import here
from userlock.errors import StaleObjectUsed
from userlock.events import LISTENERS, StaleObject
from userlock.lock.scope import current_scope
from userlock.ndb.context import current_context, in_transaction
from userlock.ndb.enforcement import Moment, current_settings
from userlock.ndb.lock_ids import lock_id_for_put
from userlock.ndb.patches import watch_attributes
from userlock.ndb.provenance import LastPut, newer_put, stamp_of
from userlock.reports import REPORTS
from userlock.settings import Reaction

_TOLD = "_userlock_told_stale"
_JUDGING = "_userlock_judging"


def watch_uses(tracked: type) -> None:
    """Look at each attribute that is read of tracked entities, from now on."""
    watch_attributes(tracked, _used)


def _used(entity: Any) -> None:
    reaction = current_settings().stale_objects
    notes = entity.__dict__
    # Its lock id may be computed from attributes.
    if reaction is Reaction.OFF or _TOLD in notes or _JUDGING in notes:
        return
    notes[_JUDGING] = True
    try:
        lock_id, newer = _newer(entity)
    finally:
        del notes[_JUDGING]
    used_at = here() if newer is not None else None
    if newer is None or not Moment(used_at, current_context()).checked:
        return
    stamp = stamp_of(entity)
    error = StaleObjectUsed(
        key=entity._key,
        lock_id=lock_id,
        read_at=None if stamp is None else stamp.place,
        newer_put_at=newer.place,
        used_at=used_at,
    )
    enforced = reaction is Reaction.RAISE
    count = REPORTS.count(error, type(entity)._get_kind(), used_at, error.read_at)
    LISTENERS.emit(StaleObject(lock_id, error, enforced, count))
    if enforced:
        raise error
    notes[_TOLD] = True


def _newer(entity: Any) -> tuple[str | None, LastPut | None]:
    """The lock id of an object that was read, and the put that makes it an old one, if any."""
    stamp = stamp_of(entity)
    if stamp is None:
        return None, None  # new, so what it says is what the code has just said
    if entity._userlock_rule is None:
        return None, newer_put(entity, stamp, None) if in_transaction() else None
    scope = current_scope()
    try:
        lock_id = lock_id_for_put(entity)
    except Exception:
        return None, None  # for its put to report
    tenure = None if scope is None or lock_id is None else scope.held.get(lock_id)
    return lock_id, None if tenure is None else newer_put(entity, stamp, tenure)
