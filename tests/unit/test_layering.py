"""Imports point one way, floor by floor, and third parties are imported only in their places."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Each floor with the floors that it may import from (itself always).
FLOORS: dict[str, set[str]] = {
    "userlock.errors": set(),
    "userlock.callsite": set(),
    "userlock.fork": set(),
    "userlock.clock": set(),
    "userlock.settings": set(),
    "userlock._version": set(),
    "userlock.words": set(),
    "userlock.sites": {"userlock.errors", "userlock.callsite", "userlock.words"},
    "userlock.events": {"userlock.errors", "userlock.sites", "userlock.words"},
    "userlock.reports": {
        "userlock.errors",
        "userlock.callsite",
        "userlock.clock",
        "userlock.events",
        "userlock.fork",
    },
    "userlock.lock": {
        "userlock.errors",
        "userlock.callsite",
        "userlock.fork",
        "userlock.clock",
        "userlock.settings",
        "userlock.events",
    },
    "userlock.stores": {
        "userlock.errors",
        "userlock.fork",
        "userlock.clock",
        "userlock.lock",
        "userlock.words",
    },
    "userlock.ndb": {
        "userlock.errors",
        "userlock.callsite",
        "userlock.fork",
        "userlock.clock",
        "userlock.settings",
        "userlock.events",
        "userlock.reports",
        "userlock.lock",
        "userlock.words",
    },
    "userlock.contrib": {
        "userlock._version",
        "userlock.clock",
        "userlock.errors",
        "userlock.fork",
        "userlock.reports",
        "userlock.settings",
        "userlock.events",
        "userlock.lock",
        "userlock.ndb",
        "userlock.words",
    },
    "userlock.cli": {
        "userlock._version",
        "userlock.errors",
        "userlock.clock",
        "userlock.sites",
        "userlock.events",
        "userlock.lock",
        "userlock.stores",
        "userlock.ndb",  # its probe, when it is asked for
        "userlock.words",
    },
    "userlock.__main__": {"userlock.cli"},
    "userlock._public": {
        "userlock._version",
        "userlock.errors",
        "userlock.settings",
        "userlock.reports",
        "userlock.lock",
        "userlock.stores",
        "userlock.ndb",
    },
    "userlock.testing": {
        "userlock.errors",
        "userlock.clock",
        "userlock.sites",
        "userlock.events",
        "userlock.reports",
        "userlock.lock",
        "userlock.stores",
        "userlock.ndb",
        "userlock.words",
    },
}

#: Third parties, and the places that may import them.
GUESTS: dict[str, tuple[str, ...]] = {
    "google.cloud": ("userlock.ndb", "userlock.stores.datastore", "userlock.contrib"),
    "pymemcache": ("userlock.stores.memcache",),
    "redis": ("userlock.stores.redis",),
    "flask": ("userlock.contrib.flask", "userlock.contrib.inspector"),
    "django": ("userlock.contrib.django",),
    "google.appengine": ("userlock.stores.appengine",),
    "opentelemetry": ("userlock.contrib.opentelemetry",),
    "pytest": ("userlock.testing",),
}


def modules(package: str) -> list[str]:
    return sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / package).rglob("*.py")
    )


def imports(module: str) -> Iterator[str]:
    """Yield the imports of a module at run time (without those for type checkers)."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(source.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def floor_of(module: str) -> str | None:
    return next((floor for floor in FLOORS if within(module, floor)), None)


@pytest.mark.parametrize("module", [name for name in modules("userlock") if name != "userlock"])
def test_imports_point_one_way(module: str) -> None:
    floor = floor_of(module)
    assert floor is not None, f"{module} stands on no floor: add it here and to docs/layout.md"
    for name in imports(module):
        if within(name, "userlock"):
            target = floor_of(name)
            assert target == floor or target in FLOORS[floor], f"{module} imports {name}"


@pytest.mark.parametrize("module", modules("userlock"))
def test_third_parties_stay_where_they_belong(module: str) -> None:
    for name in imports(module):
        for guest, rooms in GUESTS.items():
            if within(name, guest):
                assert any(within(module, room) for room in rooms), f"{module} imports {name}"


@pytest.mark.parametrize("module", modules("userlock"))
def test_the_library_does_not_import_the_emulator(module: str) -> None:
    assert not [name for name in imports(module) if within(name, "emulator")]


@pytest.mark.parametrize("module", modules("emulator"))
def test_the_emulator_does_not_import_the_library(module: str) -> None:
    assert not [name for name in imports(module) if within(name, "userlock")]


def test_the_private_parts_of_ndb_are_touched_in_one_file() -> None:
    for module in modules("userlock"):
        private = [
            name
            for name in imports(module)
            if within(name, "google.cloud.ndb")
            and any(part.startswith("_") for part in name.split("."))
        ]
        assert module == "userlock.ndb.patches" or not private, f"{module} imports {private}"


def test_the_walk_sees_something() -> None:
    """The negative control: a walk without results would let everything pass."""
    assert "userlock.lock.scope.current_scope" in set(imports("userlock.ndb.provenance"))
    assert len(modules("userlock")) > 20
    assert len(modules("emulator")) > 20


#: Longer files, with the reason.
LONG = {Path("userlock/errors.py"): "one tree of two dozen small classes"}


def test_files_stay_readable() -> None:
    sizes = {
        path.relative_to(ROOT): len(path.read_text().splitlines())
        for package in ("userlock", "emulator", "sample_app", "tests", "benchmarks", "tools")
        for path in (ROOT / package).rglob("*.py")
    }
    assert {path for path, lines in sizes.items() if lines > 600} == set(LONG)
