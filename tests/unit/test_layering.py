"""Imports point one way, floor by floor, and third parties are imported only in their places.

Type-only imports count: a reader of the one file has to know the other.
"""

from __future__ import annotations

import pytest

from tools import structure

#: The floors, the lowest first. A package imports from itself and from floors below.
FLOORS = (
    (
        "arguments",
        "callsite",
        "clock",
        "fork",
        "json_values",
        "platforms",
        "signals",
        "words",
        "_version",
    ),
    ("settings", "waits"),
    ("ids", "datastore_rpc", "bounded_calls"),
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
    ("contrib", "cli", "testing", "_public", "_models"),
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
        "userlock.admin.jobs",
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
    "cryptography": ("userlock.outbox.authentication",),
    "redis": ("userlock.stores.redis", "userlock.outbox.engines.rq"),
    "rq": ("userlock.outbox.engines.rq",),
    "flask": (
        "userlock.contrib.flask",
        "userlock.contrib.idempotent_requests.flask",
        "userlock.contrib.inspector",
    ),
    "django": ("userlock.contrib.django", "userlock.contrib.idempotent_requests.django"),
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
    assert found, f"{name} is on no floor: add it here and to CONTRIBUTING.md"
    return max(found, key=lambda place: len(place[1]))


def test_imports_point_one_way() -> None:
    wrong = []
    for module in modules("userlock"):
        if module == "userlock":
            continue
        floor, package = place_of(module)
        for name in imports(module):
            if within(name, "userlock") and name.count("."):
                target = place_of(name)
                if target != (floor, package) and target[0] >= floor:
                    wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_there_are_no_cycles() -> None:
    assert structure.cycles(structure.arrows(SOURCES["userlock"])) == []


def test_no_package_uses_the_private_attributes_of_another() -> None:
    assert structure.private_accesses(SOURCES["userlock"]) == []


def test_third_parties_stay_where_they_belong() -> None:
    wrong = [
        f"{module} imports {name}"
        for module in modules("userlock")
        for name in imports(module)
        for guest, rooms in GUESTS.items()
        if within(name, guest) and not any(within(module, room) for room in rooms)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("folder", "other"), [("userlock", "userlock_emulator"), ("emulator", "userlock")]
)
def test_the_library_and_the_emulator_do_not_import_each_other(folder: str, other: str) -> None:
    found = [(module, name) for module in modules(folder) for name in imports(module)]
    assert [each for each in found if within(each[1], other)] == []


def test_web_scopes_know_no_companion() -> None:
    """They know hooks; what an app asks for is loaded by name."""
    companions = ("outbox", "idempotency", "contrib.outbox_endpoints", "contrib.inspector")
    for module in ("request_scope", "problems", "asgi"):
        for name in imports(f"userlock.contrib.{module}"):
            assert not any(within(name, f"userlock.{each}") for each in companions), (module, name)


def test_the_private_parts_of_ndb_are_touched_in_one_file() -> None:
    touching = {
        module
        for module in modules("userlock")
        for name in imports(module)
        if within(name, "google.cloud.ndb")
        and any(part.startswith("_") for part in name.split("."))
    }
    assert touching <= {"userlock.ndb.patches"}


def test_the_walk_sees_something() -> None:
    """The negative control: a walk without results would let everything pass."""
    assert "userlock.lock.scope.current_scope" in set(imports("userlock.ndb.provenance"))
    assert len(modules("userlock")) > 20
    assert len(modules("emulator")) > 20
