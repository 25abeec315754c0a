"""Credential providers of redis-py: for passwords that change.

A provider is asked before a connection is made, which then has the whole of its
short deadline for itself.
"""

from __future__ import annotations

import importlib

import redis
from redis.credentials import CredentialProvider

from userlock.apps import find_object
from userlock.errors import ConfigurationError
from userlock.stores.urls import AddressError


def provider_of(name: str) -> CredentialProvider:
    """Return the provider that the option `credentials` of a URL names.

    Args:
        name: `google`, or `MODULE:NAME` of a redis-py `CredentialProvider`.
    """
    if name == "google":
        # Google's client takes long to import.
        module = importlib.import_module("userlock.stores.redis.google_tokens")
        provider: CredentialProvider = module.GoogleTokens()
        return provider
    problem = ""
    try:
        return find_object(name, CredentialProvider, "credential provider", "credentials")
    except ConfigurationError as error:
        problem = str(error)
    raise AddressError(f"credentials= is google, or names a provider: {problem}")


def fetched(provider: CredentialProvider) -> CredentialProvider:
    """Return a provider of the credentials that this one gives now.

    Raises:
        redis.AuthenticationError: it failed.
    """
    try:
        credentials = provider.get_credentials()
    except redis.RedisError:
        raise
    except Exception as error:  # it is the app's: its words may have a secret
        raise redis.AuthenticationError(
            f"the credential provider failed ({type(error).__name__})"
        ) from error
    return _Fetched(credentials)


class _Fetched(CredentialProvider):
    def __init__(self, credentials: tuple[str] | tuple[str, str]) -> None:
        self._credentials = credentials

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        return self._credentials
