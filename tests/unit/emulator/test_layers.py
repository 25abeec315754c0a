"""Imports point one way, and the emulator is independent."""

import ast
from pathlib import Path

import pytest

import userlock_emulator

ROOT = Path(userlock_emulator.__file__).parent

# In each package, a module may import from earlier floors.
FLOORS = {
    "port": [
        ["numbers", "status", "browsers", "planting", "relay"],
        ["reply", "rpcs", "http_body", "pages"],
        ["http_head", "arrivals", "grpc_service", "fault_requests", "front"],
        ["web"],
        ["server"],
    ],
    "datastore": [
        ["protos", "errors", "legacy_messages", "log_files"],
        ["admin_protos", "export_urls", "export_files", "legacy_entities"],
        ["encoding", "clock", "schema", "catalog"],
        ["indexing", "validation", "gql_lexer", "key_text"],
        ["rows", "masks", "gql_values", "gql_words"],
        ["writer"],
        ["storage", "query", "query_limits", "ids", "transforms", "gql"],
        ["faults", "cursors", "query_parser", "access", "composite"],
        ["query_runner", "transactions", "explain", "index_file"],
        ["activity"],
        ["index_policy", "metadata", "concurrency", "locks", "mutations"],
        ["query_batch", "pessimistic", "entity_groups", "sessions"],
        ["aggregation"],
        ["reads", "queries", "writes"],
        ["engine"],
        ["rpcs", "transfer", "operations"],
        ["admin"],
        ["http_rpcs", "control"],
        ["viewer"],
        ["server"],
    ],
    "datastore/viewer": [
        ["markup", "paths"],
        ["places"],
        ["store", "values", "frame"],
        ["querying", "trouble", "edits"],
        ["views", "trouble_views"],
        ["pages"],
    ],
    "tasks": [
        ["protos", "clock", "names", "tables"],
        ["schedule", "storage"],
        ["validation", "tokens", "faults"],
        ["attempts"],
        ["lanes", "targets"],
        ["sending", "queues"],
        ["dispatch"],
        ["tasks"],
        ["batches"],
        ["rpcs"],
        ["rest", "control"],
        ["server"],
    ],
}

# The servers do not know each other, nor does the port know them.
PACKAGES_BELOW = {
    "port": (),
    "datastore": ("port",),
    "datastore/viewer": ("datastore", "port"),
    "tasks": ("port",),
}


def imports(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def test_nothing_of_userlock_is_imported() -> None:
    for file in ROOT.rglob("*.py"):
        assert not any(name.split(".")[0] == "userlock" for name in imports(file)), file


@pytest.mark.parametrize("package", FLOORS)
def test_every_module_imports_only_from_floors_below(package: str) -> None:
    floor_of = {name: floor for floor, names in enumerate(FLOORS[package]) for name in names}
    files = [file for file in (ROOT / package).rglob("*.py") if file.stem != "__init__"]
    # A package in a package is one of its modules, and has floors of its own.
    module_of = {file: file.relative_to(ROOT / package).with_suffix("").parts[0] for file in files}
    assert set(module_of.values()) == set(floor_of)
    prefix = f"userlock_emulator.{package.replace('/', '.')}."
    for file, module in module_of.items():
        for name in imports(file):
            if name.startswith(prefix):
                below = name.removeprefix(prefix).split(".")[0]
                inside = below == module and file.parent != ROOT / package
                assert inside or floor_of[below] < floor_of[module], f"{file} imports {below}"


@pytest.mark.parametrize("package", FLOORS)
def test_the_servers_stand_side_by_side(package: str) -> None:
    for file in (ROOT / package).glob("*.py"):
        for name in imports(file):
            words = name.split(".")
            if words[0] == "userlock_emulator" and words[1:2] and (ROOT / words[1]).is_dir():
                assert words[1] in (package, *PACKAGES_BELOW[package]), f"{file} imports {name}"


def test_only_the_port_knows_grpc() -> None:
    for package in set(FLOORS) - {"port"}:
        for file in (ROOT / package).glob("*.py"):
            assert "grpc" not in imports(file), file


def test_no_module_outgrows_its_room() -> None:
    for package in FLOORS:
        for file in (ROOT / package).glob("*.py"):
            assert len(file.read_text().splitlines()) < 400, file
