"""Process-wide defaults, set once at start-up."""

from __future__ import annotations

from userlock.lock.scope import defaults
from userlock.lock.service import LockService
from userlock.settings import Enforcement, make_settings


def configure(
    *,
    service: LockService | None = None,
    enforcement: Enforcement | str | None = None,
    fencing: bool | None = None,
    capture_places: bool | None = None,
) -> None:
    """Set what scopes begin with in this process. What is not given stays as it is.

    Args:
        service: where locks come from.
        enforcement: `raise` (the default), `log` or `off`.
        fencing: whether Datastore refuses stale writes; on unless switched off.
        capture_places: whether reads remember where in the code they happened; on unless
            switched off.
    """
    settings = make_settings(
        defaults.settings,
        enforcement=enforcement,
        fencing=fencing,
        capture_places=capture_places,
    )
    if service is not None and not isinstance(service, LockService):
        raise TypeError(
            f"service must be a LockService, for instance "
            f"LockService.from_url('memcache://127.0.0.1:11211'), not {service!r:.200}"
        )
    defaults.settings = settings
    if service is not None:
        defaults.service = service
