"""Imports point one way, and the emulator is independent."""

import ast
from pathlib import Path

import emulator

ROOT = Path(emulator.__file__).parent

# Each module may import from earlier floors.
FLOORS = [
    ["protos", "errors", "numbers"],
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
    ["rpcs", "relay", "transfer", "http_body", "browsers"],
    ["servicer", "http_rpcs", "front", "http_head"],
    ["control", "web"],
    ["server"],
]


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


def test_every_module_imports_only_from_floors_below() -> None:
    floor_of = {name: floor for floor, names in enumerate(FLOORS) for name in names}
    modules = {file.stem for file in (ROOT / "datastore").glob("*.py")} - {"__init__"}
    assert modules == set(floor_of)
    prefix = "emulator.datastore."
    for module in modules:
        for name in imports(ROOT / "datastore" / f"{module}.py"):
            if name.startswith(prefix):
                below = name.removeprefix(prefix).split(".")[0]
                assert floor_of[below] < floor_of[module], f"{module} imports {below}"


def test_only_the_outer_layers_know_grpc() -> None:
    for file in (ROOT / "datastore").glob("*.py"):
        if file.stem not in ("servicer", "server"):
            assert "grpc" not in imports(file), file


def test_no_module_outgrows_its_room() -> None:
    for file in (ROOT / "datastore").glob("*.py"):
        assert len(file.read_text().splitlines()) < 400, file
