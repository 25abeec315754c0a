"""google-cloud-ndb without userlock.

Importing userlock hooks into ndb, for all models of the process. To compare with ndb alone *in the
same run*, this module records every function, class and module in the modules and classes of ndb,
and of google-cloud-datastore below it, before userlock is imported. `restored` undoes, for a block,
what has been replaced since, and removes what has been added to a class since (a descriptor, such
as `Client.stub`). The module does not depend on the places that userlock hooks into, so a hook that
moves is found as well.

Objects keep their state: the stub of a client that was created, or used, outside of such a block is
behind userlock's gate. ndb alone needs a client of its own.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import google.cloud.datastore
import google.cloud.ndb

_PACKAGES = (google.cloud.ndb.__name__, google.cloud.datastore.__name__)
_KINDS = (types.FunctionType, types.ModuleType, type, classmethod, staticmethod, property)
#: A marker for an attribute that did not exist.
_ABSENT: Any = object()


class _Attribute(NamedTuple):
    owner: Any
    name: str
    value: object


def _attributes_of(owner: Any) -> Iterator[_Attribute]:
    for name, value in vars(owner).items():
        if isinstance(value, _KINDS):
            yield _Attribute(owner, name, value)


def _modules() -> Iterator[tuple[str, types.ModuleType]]:
    for name, module in list(sys.modules.items()):
        if any(name == each or name.startswith(f"{each}.") for each in _PACKAGES):
            yield name, module


def _all_classes() -> Iterator[type]:
    """Yield each class that these modules define."""
    for module_name, module in _modules():
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module_name:
                yield value


def _all_attributes() -> Iterator[_Attribute]:
    for _, module in _modules():
        yield from _attributes_of(module)
    for each in _all_classes():
        yield from _attributes_of(each)


_too_late = any(name.startswith("userlock.ndb") for name in sys.modules)
_before = list(_all_attributes())
#: The attribute names of each class.
_names = {each: frozenset(vars(each)) for each in _all_classes()}


def replaced() -> list[_Attribute]:
    """Return the places that userlock hooks into, with their originals.

    An attribute that ndb did not have has the marker for absent.

    Raises:
        RuntimeError: userlock was used before this module was imported.
    """
    if _too_late:
        raise RuntimeError(
            "userlock was imported before ndb could be recorded without it: "
            "run this as `python -m benchmarks`"
        )
    changed = [was for was in _before if vars(was.owner).get(was.name) is not was.value]
    added = [
        _Attribute(owner, name, _ABSENT)
        for owner, names in _names.items()
        for name, value in vars(owner).items()
        if name not in names and hasattr(type(value), "__get__")
    ]
    return changed + added


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Remove userlock from ndb for a block."""
    originals = replaced()
    hooks = [
        _Attribute(was.owner, was.name, vars(was.owner).get(was.name, _ABSENT)) for was in originals
    ]
    _set(originals)
    try:
        yield
    finally:
        _set(hooks)


def _set(attributes: list[_Attribute]) -> None:
    for owner, name, value in attributes:
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
