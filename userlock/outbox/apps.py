"""Find an app's outbox by its name, for processes that are not the app: a worker, the command line.

The environment names the app, USERLOCK_APP=main:app, or the outbox, USERLOCK_OUTBOX=main:outbox.
"""

from __future__ import annotations

import os

from userlock import apps
from userlock.apps import find_object
from userlock.errors import ConfigurationError
from userlock.outbox.outbox import Outbox

#: The environment variable with the name.
VARIABLE = "USERLOCK_OUTBOX"


def outbox_of_environment() -> Outbox:
    """Return the outbox that `USERLOCK_OUTBOX` names, or that of the app in `USERLOCK_APP`.

    Raises:
        ConfigurationError: it names none.
    """
    name, app = os.environ.get(VARIABLE, ""), os.environ.get(apps.VARIABLE, "")
    if not (name or app):
        raise ConfigurationError(
            f"neither {apps.VARIABLE} nor {VARIABLE} is set, so the app's outbox is unknown. To "
            f"fix it: {apps.VARIABLE}=main:app, or {VARIABLE}=main:outbox"
        )
    return find_outbox(name) if name else apps.find_in_app(app, Outbox, "outbox", VARIABLE)


def find_outbox(name: str) -> Outbox:
    """Import an app's outbox, `module:attribute`; as `find_object`."""
    return find_object(name, Outbox, "outbox", "main:outbox")
