"""The defaults of new scopes in this process."""

from __future__ import annotations

import userlock.ids as ids
from userlock.errors import NoService
from userlock.lock.service import LockService, check_service
from userlock.settings import Enforcement, Reaction, Settings, ShowIds


class _Defaults:
    service: LockService | None = None
    settings = Settings()


defaults = _Defaults()


def configure(
    *,
    service: LockService | None = None,
    enforcement: Enforcement | str | None = None,
    fencing: bool | None = None,
    capture_places: bool | None = None,
    blind_overwrites: Reaction | str | None = None,
    show_ids: ShowIds | str | None = None,
    id_key: str | bytes | None = None,
) -> None:
    """Set the defaults of new scopes in this process. Arguments left out change nothing.

    Args:
        service: the lock service.
        enforcement: `raise` (the default), `log` or `off`.
        fencing: whether Datastore refuses stale writes. On by default.
        capture_places: whether reads remember their call site. On by default.
        blind_overwrites: the reaction to new objects that are put over existing entities:
            `off` or `raise` (the default).
        show_ids: the form of lock ids in logs, texts of errors, spans, problem documents, pages
            and the terminal: `plain` (the default), `masked` (`***`) or `hashed`. For the whole
            process, at once. Requests and keys of entities, which may contain ids, follow it.
        id_key: the secret key of the hashes; by default the environment variable
            USERLOCK_ID_KEY.

    Raises:
        ValueError: an unknown mode, or no key for `hashed`. Nothing has been changed then.
        TypeError: an argument of another type. Nothing has been changed then.
    """
    if id_key is not None and show_ids is None:
        raise ValueError("id_key is the key of show_ids='hashed', which is not given")
    form = None if show_ids is None else ids.form_of(show_ids, id_key)
    settings = defaults.settings.changed(
        enforcement=enforcement,
        fencing=fencing,
        capture_places=capture_places,
        blind_overwrites=blind_overwrites,
    )
    if service is not None:
        defaults.service = check_service(service)
    defaults.settings = settings
    if form is not None:
        ids.use(form)


def default_service() -> LockService:
    """Return the configured service, or an error that says how to configure one."""
    if defaults.service is None:
        raise NoService(
            "no lock service is configured: call "
            "userlock.configure(service=userlock.LockService.from_url("
            "'memcache://127.0.0.1:11211')) once at start-up. A web integration has a "
            "service for its requests; Flask and Django end a request before its streamed response "
            "runs"
        )
    return defaults.service
