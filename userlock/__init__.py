"""One lease lock per user for Google Cloud Datastore apps.

    with userlock.global_lock(user_id, wait_timeout=5):
        user = User.get_by_id(user_id)
        user.points += 5
        user.put()

Layers, each importing only from those before it:

    errors, clock, settings ← sites ← events ← lock ← stores, ndb, contrib, testing, cli

`_public` imports the public names when the first of them is used. The command
line does not need ndb, whose import takes most of the time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from userlock._version import __version__ as __version__

if TYPE_CHECKING:
    from userlock import stores as stores
    from userlock._public import *  # noqa: F403
    from userlock._public import __all__ as __all__
else:

    def __getattr__(name: str) -> object:
        # All names together: code that takes a lock needs the hooks in ndb as well, also for
        # plain models (a lock that is released inside a transaction is kept until the commit).
        if name == "__all__" or not name.startswith("_"):
            public = importlib.import_module("userlock._public")
            if name in vars(public):
                globals()[name] = vars(public)[name]
            if name in globals():  # a module, imported with them
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
