"""Process-wide defaults, set once at start-up."""

from __future__ import annotations

from userlock.lock.scope import defaults
from userlock.lock.service import LockService, check_service
from userlock.settings import Enforcement, Reaction, make_settings


def configure(
    *,
    service: LockService | None = None,
    enforcement: Enforcement | str | None = None,
    fencing: bool | None = None,
    capture_places: bool | None = None,
    blind_overwrites: Reaction | str | None = None,
) -> None:
    """Set what scopes begin with in this process. What is not given stays as it is.

    Args:
        service: where locks come from.
        enforcement: `raise` (the default), `log` or `off`.
        fencing: whether Datastore refuses stale writes; on unless switched off.
        capture_places: whether reads remember where in the code they happened; on unless
            switched off.
        blind_overwrites: about new objects put over entities that exist: `off`, `warn` or
            `raise` (the default).
    """
    settings = make_settings(
        defaults.settings,
        enforcement=enforcement,
        fencing=fencing,
        capture_places=capture_places,
        blind_overwrites=blind_overwrites,
    )
    if service is not None:
        check_service(service)
    defaults.settings = settings
    if service is not None:
        defaults.service = service
