"""The outbox of an app, found by the name of its module: for workers and the command line.

USERLOCK_OUTBOX=shop.jobs:outbox          the object `outbox` of the module shop/jobs.py
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys

from userlock.errors import ConfigurationError
from userlock.outbox.outbox import Outbox

#: The environment variable with the name.
VARIABLE = "USERLOCK_OUTBOX"
_NAME = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<attribute>[^\W\d]\w*)")


def outbox_of_environment() -> Outbox:
    """Return the outbox that `USERLOCK_OUTBOX` names.

    Raises:
        ConfigurationError: it names none.
    """
    name = os.environ.get(VARIABLE, "")
    if not name:
        raise ConfigurationError(
            f"{VARIABLE} is not set, so the app's outbox is unknown. To fix it: "
            f"{VARIABLE}=module:attribute, as in {VARIABLE}=shop.jobs:outbox"
        )
    return find_outbox(name)


@functools.cache
def find_outbox(name: str) -> Outbox:
    """Return the outbox of a name, `module:attribute`. Imports the module, as gunicorn does:
    also from the current directory.

    Raises:
        ConfigurationError: there is no such module or attribute, the import fails, or it is
            another object.
    """
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise ConfigurationError(
            f"{name!r:.99} names no outbox. To fix it: write module:attribute, as shop.jobs:outbox"
        )
    here = os.getcwd()  # noqa: PTH109 (sys.path has strings)
    if not {here, ""}.intersection(sys.path):
        sys.path.insert(0, here)
    module = parts["module"]
    try:
        imported = importlib.import_module(module)
    except Exception as error:
        raise ConfigurationError(
            f"the module {module} of the outbox cannot be imported: {type(error).__name__}: {error}"
        ) from error
    missing = object()
    found = getattr(imported, parts["attribute"], missing)
    if found is missing:
        raise ConfigurationError(f"the module {module} has no attribute {parts['attribute']!r}")
    if not isinstance(found, Outbox):
        raise ConfigurationError(
            f"{name} is no userlock.outbox.Outbox, but a {type(found).__qualname__}"
        )
    return found
