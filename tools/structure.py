"""Print the weight of the library beside its goals, the lines of its packages, and import cycles.

    python -m tools.structure

An arrow goes from a file to each file of the package that it imports, imports for type checkers
included: a reader of the one has to know the other. A cycle is a set of files that all reach each
other.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

#: Each module with the modules of its package that it imports.
Arrows = Mapping[str, set[str]]


def module_of(path: Path) -> str:
    """Return the dotted name of a source file below the root; the emulator has a folder around."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removeprefix("emulator.").removesuffix(".__init__")


def sources(folder: str) -> dict[str, Path]:
    """Return the source files of a folder, by their modules' names."""
    return {module_of(path): path for path in sorted((ROOT / folder).rglob("*.py"))}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return the tree of a source file."""
    return ast.parse(path.read_text())


@functools.cache
def imported(path: Path) -> tuple[str, ...]:
    """Return the names that a source file imports, anywhere and for any purpose."""
    found: list[str] = []
    statements: list[ast.AST] = list(tree_of(path).body)
    for node in statements:  # which grows; without the expressions, most of a tree
        match node:
            case ast.Import(names=names):
                found += [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names):
                found += [f"{module}.{alias.name}" for alias in names]
            case _:
                for part in ("body", "orelse", "finalbody", "handlers", "cases"):
                    statements += getattr(node, part, ())
    return tuple(found)


class Names(NamedTuple):
    """The private attributes of a source file: those that it defines, and those of other objects
    that it uses, each with its line."""

    defined: set[str]
    used: list[tuple[int, str]]


def names_in(path: Path) -> Names:
    """Return the private attributes of a source file."""
    names = Names(set(), [])
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names.defined.add(node.name)
            case ast.ClassDef():
                names.defined.update(_fields(node))
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                if isinstance(node.ctx, ast.Store):
                    names.defined.add(node.attr)
            case ast.Attribute() if _is_private(node.attr):
                names.used.append((node.lineno, node.attr))
    return names


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        targets = each.targets if isinstance(each, ast.Assign) else []
        if isinstance(each, ast.AnnAssign):
            targets = [each.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def arrows(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return each module with the modules of the same package that it imports."""

    def target(name: str) -> str | None:
        while name and name not in files:
            name = name.rpartition(".")[0]
        return name or None

    found: dict[str, set[str]] = {}
    for module, path in files.items():
        targets = {target(name) for name in imported(path)}
        found[module] = {each for each in targets if each is not None and each != module}
    return found


def cycles(graph: Arrows) -> list[list[str]]:
    """Return the cycles, the largest first: Tarjan's strongly connected components."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for following in sorted(graph.get(node, ())):
            if following not in index:
                visit(following)
                low[node] = min(low[node], low[following])
            elif following in stack:
                low[node] = min(low[node], index[following])
        if low[node] == index[node]:
            begin = stack.index(node)
            if len(stack) - begin > 1:
                found.append(sorted(stack[begin:]))
            del stack[begin:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)


def private_accesses(files: Mapping[str, Path]) -> list[str]:
    """Return the accesses to private attributes that another package defines.

    As `MODULE:LINE ATTRIBUTE (PACKAGE)`. The files of a folder share theirs. An attribute counts
    as a package's own if it defines it anywhere; attributes that no package defines belong to
    other libraries.
    """
    names = {module: names_in(path) for module, path in files.items()}
    defined: dict[str, set[str]] = {}
    for module, each in names.items():
        defined.setdefault(_package_of(module), set()).update(each.defined)
    found = []
    for module, each in names.items():
        for line, name in each.used:
            if name not in defined[_package_of(module)]:
                others = [other for other, theirs in defined.items() if name in theirs]
                if others:
                    found.append(f"{module}:{line} {name} ({', '.join(others)})")
    return found


def _package_of(module: str) -> str:
    """Return the folder of a module below the root package; the module itself if it has none."""
    return ".".join(module.split(".")[:2])


#: Public in spite of the underscore: named tuples and ndb's models keep other names for fields.
#: `_userlock_…` is a note of the library's on an object of another library.
_PUBLIC = {
    *("_asdict", "_replace"),  # of named tuples
    *("_get_kind", "_key", "_pb", "_put_async"),
    *("_lock_id", "_lock_id_from_key", "_overwrites", "_write_policy"),
}


def _is_private(name: str) -> bool:
    noted = name.startswith(("__", "_userlock_"))
    return name.startswith("_") and not noted and name not in _PUBLIC


def lines_of(*patterns: str) -> int:
    """Return the number of lines of these Python files, and of those below these folders."""
    found = {
        path for each in patterns for path in (*ROOT.glob(each), *ROOT.glob(f"{each}/**/*.py"))
    }
    return sum(len(path.read_text().splitlines()) for path in found if path.is_file())


def words_of(pattern: str) -> int:
    """Return the number of words of these pages."""
    return sum(len(path.read_text().split()) for path in ROOT.glob(pattern))


def cases() -> int:
    """Return the number of test cases: all tests are collected."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found = re.search(r"^(\d+) tests collected", said, re.MULTILINE)
    return int(found[1]) if found else 0


#: What is weighed, the goal, and how it is counted. Nothing enforces the goals.
WEIGHTS: tuple[tuple[str, int, Callable[[], int]], ...] = (
    ("userlock/: lines", 30_000, lambda: lines_of("userlock")),
    ("  lock/ and stores/", 8_000, lambda: lines_of("userlock/lock", "userlock/stores")),
    ("  ndb/", 4_500, lambda: lines_of("userlock/ndb")),
    (
        "  cli, admin/ and inspector",
        4_500,
        lambda: lines_of("userlock/cli.py", "userlock/admin", "userlock/contrib/inspector"),
    ),
    ("documentation: words", 22_000, lambda: words_of("docs/**/*.md")),
    ("README.md: words", 800, lambda: words_of("README.md")),
    ("tests/: lines", 65_000, lambda: lines_of("tests")),
    ("tests/: cases", 11_000, cases),
)


def main() -> None:
    """Print all of it."""
    files = sources("userlock")
    folders = sorted({module.split(".")[1] for module in files if module.count(".") > 1})
    print("Lines of the packages:")
    for folder in folders:
        print(f"  {folder:14}{lines_of(f'userlock/{folder}'):8,}")
    found = cycles(arrows(files))
    print(f"\n{len(found)} cycles of imports" + (":" if found else ""))
    for cycle in found:
        print(f"  {len(cycle)}: {', '.join(each.removeprefix('userlock.') for each in cycle)}")
    accesses = private_accesses(files)
    print(f"\n{len(accesses)} accesses to private attributes of another package")
    for access in accesses:
        print(f"  {access}")
    print(f"\n{'':40}{'now':>8}{'goal':>8}")
    for what, goal, count in WEIGHTS:
        print(f"{what:40}{count():8,}{goal:8,}", flush=True)


if __name__ == "__main__":
    main()
