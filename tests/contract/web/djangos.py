"""Run Django in a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
from django.conf import settings
from django.test import Client, override_settings


@contextmanager
def django_client(**options: Any) -> Iterator[Client]:
    """Provide a client of a site. Errors of a view become answers, as in production."""
    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=["testserver"], LOGGING_CONFIG=None, SECRET_KEY="for tests"
        )
        django.setup()
    with override_settings(**options):
        yield Client(raise_request_exception=False)
