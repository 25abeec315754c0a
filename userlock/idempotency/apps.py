"""Find an app's flows by their name, for the command line."""

from __future__ import annotations

from userlock.apps import find_object
from userlock.idempotency.flows import Flows

#: The environment variable with the name.
VARIABLE = "USERLOCK_FLOWS"


def find_flows(name: str) -> Flows:
    """Import an app's flows. Modules of the current directory are found.

    Args:
        name: `module:attribute`; both may have dots.

    Raises:
        ConfigurationError: there are none of that name, or their module cannot be imported.
    """
    return find_object(name, Flows, "flows", "main:flows")
