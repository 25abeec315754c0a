"""Imports point one way, floor by floor, and third parties are imported only in their places.

Type-only imports count: a reader of the one file has to know the other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import structure

ROOT = Path(__file__).parents[2]

#: The floors, the lowest first. A package imports from itself and from floors below.
FLOORS = (
    (
        "bell",
        "callsite",
        "clock",
        "fork",
        "json_values",
        "platforms",
        "settings",
        "words",
        "datastore_rpc",
        "_version",
    ),
    ("ids",),
    ("errors",),
    ("apps",),
    ("sites",),
    ("events",),
    ("lock", "reports"),
    ("stores", "ndb"),
    ("outbox",),
    ("idempotency", "constraints", "deletion"),
    ("admin",),
    ("contrib.inspector",),
    ("contrib", "cli", "testing", "_public"),
    ("__main__",),
)

#: Third parties, and the places that may import them.
GUESTS: dict[str, tuple[str, ...]] = {
    "google.cloud": (
        "userlock.ndb",
        "userlock.outbox",
        "userlock.idempotency",
        "userlock.constraints",
        "userlock.deletion",
        "userlock.datastore_rpc",
        "userlock.stores.datastore",
        "userlock.admin.ndb",
        "userlock.admin.outbox",
        "userlock.admin.requests",
        "userlock.contrib",
    ),
    "pymemcache": ("userlock.stores.memcache",),
    "google.auth": (
        "userlock.admin",
        "userlock.ndb",
        "userlock.outbox.authentication",
        "userlock.stores.redis.google_tokens",
    ),
    "cryptography": ("userlock.outbox.certificates",),
    "redis": ("userlock.stores.redis", "userlock.outbox.engines.rq"),
    "rq": ("userlock.outbox.engines.rq",),
    "flask": ("userlock.contrib.flask", "userlock.contrib.inspector"),
    "django": ("userlock.contrib.django",),
    "google.appengine": ("userlock.stores.appengine",),
    "opentelemetry": ("userlock.contrib.opentelemetry",),
    "pytest": ("userlock.testing",),
}


SOURCES = {folder: structure.sources(folder) for folder in ("userlock", "emulator")}


def modules(folder: str) -> list[str]:
    return sorted(SOURCES[folder])


def imports(module: str) -> list[str]:
    """Return the imports of a module, for type checkers included."""
    return list(structure.imported((SOURCES["userlock"] | SOURCES["emulator"])[module]))


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def place_of(name: str) -> tuple[int, str]:
    """Return the number of a module's floor, and its package there."""
    found = [
        (number, package)
        for number, packages in enumerate(FLOORS)
        for package in packages
        if within(name, f"userlock.{package}")
    ]
    assert found, f"{name} is on no floor: add it here and to docs/layout.md"
    return max(found, key=lambda place: len(place[1]))


@pytest.mark.parametrize("module", [name for name in modules("userlock") if name != "userlock"])
def test_imports_point_one_way(module: str) -> None:
    floor, package = place_of(module)
    for name in imports(module):
        if within(name, "userlock") and name.count("."):
            target = place_of(name)
            assert target == (floor, package) or target[0] < floor, f"{module} imports {name}"


@pytest.mark.parametrize("package", ["userlock", "emulator", "sample_app"])
def test_there_are_no_cycles(package: str) -> None:
    assert structure.cycles(structure.arrows(structure.sources(package))) == []


def test_no_file_uses_the_private_attributes_of_another() -> None:
    assert structure.private_accesses(structure.sources("userlock")) == []


def test_the_lock_has_few_floors() -> None:
    files = structure.sources("userlock.lock".replace(".", "/"))
    assert structure.floors(structure.arrows(files)) <= 9
    assert len(files) <= 21


@pytest.mark.parametrize("module", modules("userlock"))
def test_third_parties_stay_where_they_belong(module: str) -> None:
    for name in imports(module):
        for guest, rooms in GUESTS.items():
            if within(name, guest):
                assert any(within(module, room) for room in rooms), f"{module} imports {name}"


@pytest.mark.parametrize("module", modules("userlock"))
def test_the_library_does_not_import_the_emulator(module: str) -> None:
    assert not [name for name in imports(module) if within(name, "userlock_emulator")]


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
