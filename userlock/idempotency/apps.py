"""Find an app's flows by their name, for the command line."""

from __future__ import annotations

from userlock.apps import find_object
from userlock.idempotency.flows import Flows

#: The environment variable with the name.
VARIABLE = "USERLOCK_FLOWS"


def find_flows(name: str) -> Flows:
    """Import an app's flows, `module:attribute`; as `find_object`."""
    return find_object(name, Flows, "flows", "main:flows")
