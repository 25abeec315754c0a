"""Print the structure of the library: files, lines, import arrows, cycles, private accesses.

    python -m tools.structure [PACKAGE]      (userlock)

An arrow goes from a file to each file of the package that it imports, imports for type checkers
included: a reader of the one has to know the other. A cycle is a set of files that all reach each
other.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

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


def imported(path: Path) -> Iterator[str]:
    """Yield the names that a source file imports, anywhere and for any purpose."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


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


def floors(graph: Arrows) -> int:
    """Return the number of modules on the longest path; a cycle counts as one."""
    members = {each: cycle[0] for cycle in cycles(graph) for each in cycle}
    below: dict[str, set[str]] = {}
    for module, targets in graph.items():
        own = members.get(module, module)
        below.setdefault(own, set()).update(members.get(each, each) for each in targets)
        below[own].discard(own)
    height: dict[str, int] = {}

    def climb(node: str) -> int:
        if node not in height:
            height[node] = 1 + max((climb(each) for each in below.get(node, ())), default=0)
        return height[node]

    return max((climb(node) for node in below), default=0)


def private_accesses(files: Mapping[str, Path]) -> list[str]:
    """Return the accesses to private attributes that another package defines.

    As `MODULE:LINE ATTRIBUTE (PACKAGE)`. The files of a folder share theirs. An attribute counts
    as a package's own if it defines it anywhere; attributes that no package defines belong to
    other libraries.
    """
    trees = {module: ast.parse(path.read_text()) for module, path in files.items()}
    defined: dict[str, set[str]] = {}
    for module, tree in trees.items():
        defined.setdefault(_package_of(module), set()).update(_defined(tree))
    found = []
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not _is_private(node.attr):
                continue
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if own or node.attr in defined[_package_of(module)]:
                continue
            others = [other for other, names in defined.items() if node.attr in names]
            if others:
                found.append(f"{module}:{node.lineno} {node.attr} ({', '.join(others)})")
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


def _defined(tree: ast.AST) -> Iterator[str]:
    """Yield the private attributes that a file defines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.ClassDef(body=body):
                for each in body:
                    targets = each.targets if isinstance(each, ast.Assign) else []
                    if isinstance(each, ast.AnnAssign):
                        targets = [each.target]
                    yield from (target.id for target in targets if isinstance(target, ast.Name))
            case _:
                pass


def main(package: str = "userlock") -> None:
    """Print the structure of the package and of each folder in it."""
    files = sources(package)
    folders = sorted({module.split(".")[1] for module in files if module.count(".") > 1})
    print(f"{'':24}{'files':>7}{'lines':>8}{'arrows':>8}{'floors':>8}")
    for name in [package, *(f"{package}.{folder}" for folder in folders)]:
        own = {
            module: path
            for module, path in files.items()
            if module == name or module.startswith(f"{name}.")
        }
        graph = arrows(own)
        lines = sum(len(path.read_text().splitlines()) for path in own.values())
        count = sum(map(len, graph.values()))
        print(f"{name:24}{len(own):7}{lines:8,}{count:8}{floors(graph):8}")
    found = cycles(arrows(files))
    print(f"\n{len(found)} cycles of imports" + (":" if found else ""))
    for cycle in found:
        print(f"  {len(cycle)}: {', '.join(each.removeprefix(f'{package}.') for each in cycle)}")
    accesses = private_accesses(files)
    print(f"\n{len(accesses)} accesses to private attributes of another package")
    for access in accesses:
        print(f"  {access}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
