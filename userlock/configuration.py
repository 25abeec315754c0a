"""Set the defaults of this process, once at start-up."""

from __future__ import annotations

from userlock.lock.scope import defaults
from userlock.lock.service import LockService, check_service
from userlock.settings import Enforcement, Reaction


def configure(
    *,
    service: LockService | None = None,
    enforcement: Enforcement | str | None = None,
    fencing: bool | None = None,
    capture_places: bool | None = None,
    blind_overwrites: Reaction | str | None = None,
) -> None:
    """Set the defaults of new scopes in this process. Arguments left out change nothing.

    Args:
        service: the lock service.
        enforcement: `raise` (the default), `log` or `off`.
        fencing: whether Datastore refuses stale writes. On by default.
        capture_places: whether reads remember their call site. On by default.
        blind_overwrites: the reaction to new objects that are put over existing entities:
            `off`, `warn` or `raise` (the default).

    Raises:
        ValueError: an unknown mode. Nothing has been changed then.
    """
    settings = defaults.settings.changed(
        enforcement=enforcement,
        fencing=fencing,
        capture_places=capture_places,
        blind_overwrites=blind_overwrites,
    )
    if service is not None:
        defaults.service = check_service(service)
    defaults.settings = settings
