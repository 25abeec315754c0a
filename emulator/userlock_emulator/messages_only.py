"""The message classes of Google's client packages without their clients: half of a start's imports.

The packages import their clients, and with them HTTP and authentication. A process that serves
needs the messages alone. Anybody who asks for more of a package gets all of it, a moment later.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

_PACKAGES = (
    *("datastore_v1", "datastore_admin_v1"),
    *("tasks_v2", "tasks_v2beta3", "tasks_v2beta2"),
)


def postpone_clients() -> None:
    """Let the packages that are not imported yet begin without their own code."""
    import google.cloud

    for package in _PACKAGES:
        name = f"google.cloud.{package}"
        if name in sys.modules:
            continue
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            continue
        if spec is None:
            continue
        module = importlib.util.module_from_spec(spec)
        module.__dict__["__getattr__"] = _whole(module)
        sys.modules[name] = module
        setattr(google.cloud, package, module)


def _whole(module: ModuleType) -> Any:
    """Return a function for attributes that are missing: it runs the package's code first."""

    def find(attribute: str) -> Any:
        # `from package import module` asks for an attribute first.
        inner = f"{module.__name__}.{attribute}"
        if attribute.isidentifier() and importlib.util.find_spec(inner) is not None:
            return importlib.import_module(inner)
        del module.__dict__["__getattr__"]
        spec = module.__spec__
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(module)
        return getattr(module, attribute)

    return find
