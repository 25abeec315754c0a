"""Imports point one way, and the emulator is independent."""

import ast
from pathlib import Path

import pytest

import emulator

ROOT = Path(emulator.__file__).parent

# In each package, a module may import from earlier floors.
FLOORS = {
    "port": [
        ["numbers", "status", "browsers", "planting", "relay"],
        ["reply", "rpcs", "http_body"],
        ["http_head", "arrivals", "grpc_service", "fault_requests", "front"],
        ["web"],
        ["server"],
    ],
    "datastore": [
        ["protos", "errors"],
        ["encoding", "clock", "schema", "catalog"],
        ["indexing", "validation", "gql_lexer"],
        ["rows", "masks", "gql_values", "gql_words"],
        ["storage", "query", "query_limits", "ids", "transforms", "gql"],
        ["faults", "cursors", "query_parser", "access", "composite"],
        ["query_runner", "transactions", "explain", "index_file"],
        ["index_policy", "metadata", "concurrency", "locks", "mutations"],
        ["query_batch", "pessimistic", "entity_groups", "sessions"],
        ["aggregation"],
        ["reads", "queries", "writes"],
        ["engine"],
        ["rpcs", "transfer"],
        ["http_rpcs", "control"],
        ["server"],
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
PACKAGES_BELOW = {"port": (), "datastore": ("port",), "tasks": ("port",)}


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
    modules = {file.stem for file in (ROOT / package).glob("*.py")} - {"__init__"}
    assert modules == set(floor_of)
    prefix = f"emulator.{package}."
    for module in modules:
        for name in imports(ROOT / package / f"{module}.py"):
            if name.startswith(prefix):
                below = name.removeprefix(prefix).split(".")[0]
                assert floor_of[below] < floor_of[module], f"{module} imports {below}"


@pytest.mark.parametrize("package", FLOORS)
def test_the_servers_stand_side_by_side(package: str) -> None:
    for file in (ROOT / package).glob("*.py"):
        for name in imports(file):
            words = name.split(".")
            if words[0] == "emulator" and words[1:2] and (ROOT / words[1]).is_dir():
                assert words[1] in (package, *PACKAGES_BELOW[package]), f"{file} imports {name}"


def test_only_the_port_knows_grpc() -> None:
    for package in set(FLOORS) - {"port"}:
        for file in (ROOT / package).glob("*.py"):
            assert "grpc" not in imports(file), file


def test_no_module_outgrows_its_room() -> None:
    for package in FLOORS:
        for file in (ROOT / package).glob("*.py"):
            assert len(file.read_text().splitlines()) < 400, file
