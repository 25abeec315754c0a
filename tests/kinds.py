"""The classes of kinds: ndb loads entities of a kind as the class that was defined last."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from google.cloud import ndb


def kinds_for(module: ModuleType) -> dict[str, type[ndb.Model]]:
    """Return the classes of a module of tests, of its conftest files, and those it imports."""
    packages = module.__name__.split(".")[:-1]
    conftests = [".".join([*packages[:depth], "conftest"]) for depth in range(len(packages) + 1)]
    imported = {
        each._get_kind(): each  # type: ignore[attr-defined]
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, ndb.Model)
    }
    return kinds_of(*conftests) | imported | kinds_of(module.__name__)


def kinds_of(*modules: str) -> dict[str, type[ndb.Model]]:
    """Return the classes at the top of modules and of those within them, by kind."""
    found = {}
    for each in _subclasses(ndb.Model):
        inside = each.__module__ in modules or each.__module__.startswith(
            tuple(f"{module}." for module in modules)
        )
        if inside and "." not in each.__qualname__:
            found[each._get_kind()] = each
    return found


def _subclasses(model: type[ndb.Model]) -> Iterator[type[ndb.Model]]:
    for each in model.__subclasses__():
        yield each
        yield from _subclasses(each)
