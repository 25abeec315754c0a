"""The emulator is independent, its packages know only those below, and no imports form a cycle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import userlock_emulator

ROOT = Path(userlock_emulator.__file__).parent
NAME = "userlock_emulator"
# The servers do not know each other, nor does the port know them.
BELOW = {
    "port": set(),
    "memcache": set(),
    "datastore": {"port"},
    "tasks": {"port"},
}


def imports(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


FILES = {
    ".".join((NAME, *file.relative_to(ROOT).with_suffix("").parts)): imports(file)
    for file in ROOT.rglob("*.py")
}


def test_packages_know_only_those_below() -> None:
    for file, names in FILES.items():
        package = file.split(".")[1]
        for name in names:
            words = name.split(".")
            assert words[0] != "userlock", file
            assert words[0] != "grpc" or package not in ("datastore", "tasks"), file
            if package in BELOW and words[0] == NAME and words[1:2] and words[1] in BELOW:
                assert words[1] in BELOW[package] | {package}, f"{file} imports {name}"


def test_no_imports_form_a_cycle() -> None:
    modules = {name: names & FILES.keys() - {name} for name, names in FILES.items()}
    TopologicalSorter(modules).prepare()
