"""Find an app's outbox, for processes that are not the app, as a worker."""

from __future__ import annotations

import os

from userlock import apps
from userlock.errors import ConfigurationError
from userlock.outbox.outbox import Outbox


def outbox_of_environment() -> Outbox:
    """Return the outbox that `USERLOCK_OUTBOX` names, or that of the app in `USERLOCK_APP`.

    Raises:
        ConfigurationError: it names none.
    """
    variable = apps.variable_of("outbox")
    name, app = os.environ.get(variable, ""), os.environ.get(apps.VARIABLE, "")
    if not (name or app):
        raise ConfigurationError(
            f"neither {apps.VARIABLE} nor {variable} is set, so the app's outbox is unknown. To "
            f"fix it: {apps.VARIABLE}=main:app, or {variable}=main:outbox"
        )
    if name:
        return apps.find_object(name, Outbox, "outbox")
    return apps.find_in_app(app, Outbox, "outbox")
