"""A Datastore emulator; beside it, Cloud Tasks (`tasks`) and an embedded memcached (`memcache`).

`start()` runs a Datastore emulator inside this process. `python -m emulator` runs one in a process
of its own:

    with emulator.start() as datastore:
        os.environ.update(datastore.env)
        client = ndb.Client()
"""

from typing import TYPE_CHECKING, Any

from emulator._version import __version__

if TYPE_CHECKING:
    from emulator.datastore.server import Emulator, start
    from emulator.limits import Limits
    from emulator.port.server import PortInUseError
    from emulator.port.status import StorageError

__all__ = ["Emulator", "Limits", "PortInUseError", "StorageError", "__version__", "start"]

_HOMES = {
    "Emulator": "emulator.datastore.server",
    "Limits": "emulator.limits",
    "PortInUseError": "emulator.port.server",
    "StorageError": "emulator.port.status",
    "start": "emulator.datastore.server",
}


def __getattr__(name: str) -> Any:
    # gRPC and the Datastore messages take a quarter of a second to import. Users of the memcached
    # server alone should not pay for that.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
