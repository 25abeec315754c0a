"""Find an app's outbox by its name, for processes that are not the app: a worker, the command line.

The name is that of a module and an attribute, as gunicorn takes it: `main:outbox`, often in the
environment variable USERLOCK_OUTBOX.
"""

from __future__ import annotations

import os

from userlock.apps import find_object
from userlock.errors import ConfigurationError
from userlock.outbox.outbox import Outbox

#: The environment variable with the name.
VARIABLE = "USERLOCK_OUTBOX"


def outbox_of_environment() -> Outbox:
    """Return the outbox that `USERLOCK_OUTBOX` names.

    Raises:
        ConfigurationError: it names none.
    """
    name = os.environ.get(VARIABLE, "")
    if not name:
        raise ConfigurationError(
            f"{VARIABLE} is not set, so the app's outbox is unknown. To fix it: "
            f"{VARIABLE}=module:attribute, as in {VARIABLE}=main:outbox"
        )
    return find_outbox(name)


def find_outbox(name: str) -> Outbox:
    """Import an app's outbox. Modules of the current directory are found.

    Args:
        name: `module:attribute`; both may have dots.

    Raises:
        ConfigurationError: there is none of that name, or its module cannot be imported.
    """
    return find_object(name, Outbox, "outbox", "main:outbox")
