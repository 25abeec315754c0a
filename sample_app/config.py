"""The site's settings, from `create_app`'s mapping or the environment."""

from __future__ import annotations

import enum
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from sample_app.numbers import whole_number

MAX_THINK_MS = 10_000
MAX_LEASE_SECONDS = 600


class Protection(enum.StrEnum):
    """The protection of a learner from concurrent changes.

    `lock` is the library's normal use: the lock and fenced writes. The others exist to show the
    purpose of each half. `lock-only` relies on the lock alone, and so loses updates during an
    outage of memcached. `fencing` takes no lock and lets Datastore refuse the stale write. `none`
    is the site without the library.
    """

    LOCK = "lock"
    LOCK_ONLY = "lock-only"
    FENCING = "fencing"
    NONE = "none"

    @property
    def locked(self) -> bool:
        """Return whether the lock is taken and checked by the model layer."""
        return self in {Protection.LOCK, Protection.LOCK_ONLY}

    @property
    def fenced(self) -> bool:
        """Return whether Datastore refuses a write that is based on a stale read."""
        return self in {Protection.LOCK, Protection.FENCING}


class ConfigError(ValueError):
    """A setting has an unusable value. The message names the setting."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The site's settings, checked.

    `datastore_host` is the emulator's address, or None for Google's Datastore. `think_ms` is for
    demonstrations and tests only: every action pauses for that time between its get and its put,
    which makes lost updates likely. `lab_dir` is the folder of the contention lab's runs; without
    it there is no lab. `inspector` shows userlock's inspector to requests from this machine.
    `lab_bench` serves the contention lab's endpoint, on a site of its own. `outbox` is the URL of
    the jobs' engine. `storage` is where uploaded pictures are: a folder, or gs://BUCKET.
    `lease_seconds` is the lifetime of a lock whose process died. `payment_provider` is the URL of
    the fake payment provider; without it there are no paid courses. With `deaths`, people may have
    the worker of their request killed (`sample_app.demonstration`); with an emulator only.
    """

    memcached: str
    project: str
    datastore_host: str | None
    protection: Protection
    think_ms: int
    lease_seconds: int
    secret_key: str
    outbox: str
    storage: str
    lab_bench: bool
    lab_dir: str | None
    inspector: bool
    payment_provider: str | None
    deaths: bool

    @classmethod
    def load(
        cls, config: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
    ) -> Settings:
        """Take each setting from `config`, else from the environment, else its default."""
        given = {**(os.environ if environ is None else environ), **(config or {})}
        datastore_host = str(given.get("DATASTORE_EMULATOR_HOST") or "") or None
        return cls(
            memcached=str(given.get("MEMCACHED") or "127.0.0.1:11211"),
            project=str(given.get("GOOGLE_CLOUD_PROJECT") or "learning-site"),
            datastore_host=datastore_host,
            protection=_protection(given.get("PROTECTION") or Protection.LOCK),
            think_ms=_milliseconds("THINK_MS", given.get("THINK_MS") or 0),
            lease_seconds=_lease(given.get("LEASE_SECONDS") or 60),
            # The key that signs the session cookie. Workers must share it, so a site with several
            # processes needs SECRET_KEY.
            secret_key=str(given.get("SECRET_KEY") or secrets.token_hex(16)),
            outbox=str(given.get("OUTBOX") or "inline://"),
            storage=str(given.get("STORAGE") or ".run/pictures"),
            lab_bench=bool(given.get("LAB_BENCH")),
            lab_dir=str(given.get("LAB_DIR") or "") or None,
            inspector=bool(given.get("INSPECTOR")),
            payment_provider=_provider(given.get("PAYMENT_PROVIDER")),
            deaths=_deaths(given.get("DEATHS"), datastore_host),
        )


def _protection(value: object) -> Protection:
    try:
        return Protection(str(value))
    except ValueError:
        choices = ", ".join(Protection)
        raise ConfigError(f"PROTECTION is {value!r}; it is one of: {choices}") from None


def _provider(value: object) -> str | None:
    """Return the URL of the fake provider, which is on this machine."""
    url = str(value or "").rstrip("/")
    if url and not re.fullmatch(r"http://127\.0\.0\.1:\d{1,5}", url):
        raise ConfigError(
            f"PAYMENT_PROVIDER is {url!r:.80}; it is http://127.0.0.1:PORT, the fake one"
        )
    return url or None


def _deaths(value: object, datastore_host: str | None) -> bool:
    if value and datastore_host is None:
        raise ConfigError(
            "DEATHS lets people kill workers, and is for the Datastore emulator only: "
            "set DATASTORE_EMULATOR_HOST, or leave DEATHS out"
        )
    return bool(value)


def _lease(value: object) -> int:
    seconds = whole_number(str(value), least=1, most=MAX_LEASE_SECONDS)
    if seconds is None:
        raise ConfigError(
            f"LEASE_SECONDS is {value!r}; it is a whole number from 1 to {MAX_LEASE_SECONDS}"
        )
    return seconds


def _milliseconds(name: str, value: object) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise ConfigError(f"{name} is {value!r}; it is a whole number of milliseconds") from None
    if not 0 <= number <= MAX_THINK_MS:
        raise ConfigError(f"{name} is {number}; it lies between 0 and {MAX_THINK_MS}")
    return number
