"""Datastore client, lock service and model layer for the settings."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from google.cloud import ndb

import userlock
from sample_app.config import Settings
from userlock.lock.store import LeaseStore

_DATASTORE_EMULATOR_HOST = "DATASTORE_EMULATOR_HOST"
_environment = threading.Lock()
_ANY_VERSION = object()


def ndb_client(settings: Settings) -> ndb.Client:
    """Return a client for the emulator that `settings` names, else for Google's Datastore."""
    with _emulator_host(settings.datastore_host):
        return ndb.Client(project=settings.project)


def lock_service(settings: Settings) -> userlock.LockService:
    """Return a lock service with memcached, or without any lock for the demonstrations."""
    if settings.protection.locked:
        return userlock.LockService.from_url(
            f"memcache://{settings.memcached}?prefix=learn",
            policy=userlock.LockPolicy().with_lock_timeout(settings.lease_seconds),
        )
    return userlock.LockService(GrantsEverybody())


def model_layer(settings: Settings) -> userlock.Settings:
    """Return the settings of the model layer: checks and fencing as the protection has them."""
    locked = settings.protection.locked
    return userlock.Settings(
        enforcement=userlock.Enforcement.RAISE if locked else userlock.Enforcement.OFF,
        fencing=settings.protection.fenced,
    )


class GrantsEverybody(LeaseStore):
    """A lease store that grants every lease at once: the lock, removed.

    For the negative control only. The handlers are unchanged, so that only the protection differs.
    """

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> object:
        return _ANY_VERSION

    def read(self, lock_id: str, *, hurry: bool = False) -> None:
        return None

    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> object:
        return _ANY_VERSION

    def remove(self, lock_id: str, version: object) -> bool:
        return True

    def append(self, lock_id: str, line: bytes) -> None:
        return None

    def close(self) -> None:
        pass


@contextlib.contextmanager
def _emulator_host(address: str | None) -> Iterator[None]:
    # ndb.Client finds the emulator by its environment variable only, and reads it in its
    # constructor.
    with _environment:
        before = os.environ.pop(_DATASTORE_EMULATOR_HOST, None)
        if address is not None:
            os.environ[_DATASTORE_EMULATOR_HOST] = address
        try:
            yield
        finally:
            os.environ.pop(_DATASTORE_EMULATOR_HOST, None)
            if before is not None:
                os.environ[_DATASTORE_EMULATOR_HOST] = before
