"""A Datastore emulator; beside it, Cloud Tasks (`tasks`) and an embedded memcached (`memcache`).

`start()` runs a Datastore emulator inside this process. `userlock-emulator` runs one in a process
of its own:

    with userlock_emulator.start() as datastore:
        os.environ.update(datastore.env)
        client = ndb.Client()
"""

from typing import TYPE_CHECKING, Any

from userlock_emulator._version import __version__

if TYPE_CHECKING:
    from userlock_emulator.datastore.server import Emulator, start
    from userlock_emulator.limits import Limits
    from userlock_emulator.port.status import StorageError
    from userlock_emulator.sockets import PortInUseError

__all__ = ["Emulator", "Limits", "PortInUseError", "StorageError", "__version__", "start"]

_HOMES = {
    "Emulator": "userlock_emulator.datastore.server",
    "Limits": "userlock_emulator.limits",
    "PortInUseError": "userlock_emulator.sockets",
    "StorageError": "userlock_emulator.port.status",
    "start": "userlock_emulator.datastore.server",
}


def __getattr__(name: str) -> Any:
    # gRPC and the Datastore messages take a quarter of a second to import. Users of the memcached
    # server alone should not pay for that.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
