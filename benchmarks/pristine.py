"""google-cloud-ndb as it is without userlock.

Whoever uses userlock has its hooks in ndb, for all models of the process. To
compare with ndb alone *in the same run*, this module notes every function,
class and module that ndb's modules and classes have before userlock is used;
`restored` puts back what has been replaced since, for a block. Nothing here
knows which places userlock hooks into, so a hook that moves is found as well.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import google.cloud.ndb

_PACKAGE = google.cloud.ndb.__name__
_KINDS = (types.FunctionType, types.ModuleType, type, classmethod, staticmethod, property)


class _Attribute(NamedTuple):
    owner: Any
    name: str
    value: object


def _attributes_of(owner: Any) -> Iterator[_Attribute]:
    for name, value in vars(owner).items():
        if isinstance(value, _KINDS):
            yield _Attribute(owner, name, value)


def _all_attributes() -> Iterator[_Attribute]:
    for module_name, module in list(sys.modules.items()):
        if module_name != _PACKAGE and not module_name.startswith(f"{_PACKAGE}."):
            continue
        for attribute in _attributes_of(module):
            yield attribute
            value = attribute.value
            if isinstance(value, type) and value.__module__ == module_name:
                yield from _attributes_of(value)


_too_late = any(name.startswith("userlock.ndb") for name in sys.modules)
_before = list(_all_attributes())


def replaced() -> list[_Attribute]:
    """What ndb had and has no longer: the places that userlock hooks into, with their originals.

    Raises:
        RuntimeError: userlock was used before this module was imported.
    """
    if _too_late:
        raise RuntimeError(
            "userlock was used before ndb could be looked at without it: "
            "run this as `python -m benchmarks`"
        )
    return [was for was in _before if vars(was.owner).get(was.name) is not was.value]


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """For a block, ndb is as if userlock had not been used."""
    originals = replaced()
    hooks = [_Attribute(was.owner, was.name, vars(was.owner)[was.name]) for was in originals]
    _set(originals)
    try:
        yield
    finally:
        _set(hooks)


def _set(attributes: list[_Attribute]) -> None:
    for owner, name, value in attributes:
        setattr(owner, name, value)
