"""The base of every error, and what is wrong with a set-up."""

from __future__ import annotations

from typing import Any


class UserLockError(Exception):
    """Base of every error in this library. Can be pickled, as process pools do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self._portable())

    def _portable(self) -> dict[str, Any]:
        """Return the attributes; a place in the code, which cannot travel, as text."""
        return {
            name: str(value) if name.endswith("_at") and value is not None else value
            for name, value in self.__dict__.items()
        }


def _rebuild(
    kind: type[UserLockError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> UserLockError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


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
