"""One lease lock per user for Google Cloud Datastore apps.

    with userlock.global_lock(user_id, wait_timeout=5):
        user = User.get_by_id(user_id)
        user.points += 5
        user.put()

Layers, each importing only from those before it:

    errors, clock, settings ← sites ← events ← lock ← stores, ndb, contrib, testing, cli

The public names are in `_public` and, those that need ndb, in `_models`. Each of the two
is imported when a name is used that is not in the one before: locks need no ndb, whose
import takes most of the time.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

from userlock._version import __version__ as __version__

if TYPE_CHECKING:
    from userlock import constraints as constraints
    from userlock import deletion as deletion
    from userlock import idempotency as idempotency
    from userlock import outbox as outbox
    from userlock import stores as stores
    from userlock._models import *  # noqa: F403
    from userlock._public import *  # noqa: F403

    __all__: list[str]
else:

    def _names(part: str) -> dict[str, object]:
        found = vars(importlib.import_module(f"userlock.{part}"))
        return {name: value for name, value in found.items() if name[0].isalpha()}

    def __getattr__(name: str) -> object:
        if name == "__all__":
            found = sorted({"__version__", *_names("_public"), *_names("_models")})
        elif name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        elif name in (names := _names("_public")):
            found = names[name]
        elif importlib.util.find_spec(f"userlock.{name}") is not None:
            return importlib.import_module(f"userlock.{name}")
        elif name in (names := _names("_models")):
            found = names[name]
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
