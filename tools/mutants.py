"""Plant seeded mutations in the library, and count those that the fast tests notice.

    python -m tools.mutants [--paths userlock/stores …] [--count 300] [--seed 35] [--jobs 2]
                            [--tests 200] [--seconds 60] [--root CHECKOUT] [--json FILE]

1. The fast tests run once under coverage.py: which test reaches which line, and how long it takes.
   The result is kept in `.run/mutants/` until a source file changes.
2. The seed draws the mutations: from each file as many as its share of all possible ones. A
   mutation in a line that no test reaches survives without a run. Named numbers, such as
   time-outs, are choices and no rules: they are left as they are.
3. Each mutation is planted in a copy of the checkout, which comes first on `PYTHONPATH`, so that
   child processes have it too. Of the tests that reach its line some run, the fastest first: up to
   `--tests`, from as many files as possible, that take up to `--seconds` together. A failure kills
   the mutation, and so does a run that takes five times as long as before and a minute more. So
   compare scores of runs with the same options on a quiet machine: times that were noted while
   other work ran leave room for fewer tests.

Exits with 1 if most tests fail without a mutation; the score does not change the exit status.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any

FOLDERS = ["lock", "stores", "ndb", "outbox", "idempotency", "constraints", "deletion"]
TESTS = [
    *(f"tests/unit/{each}" for each in [*FOLDERS, "testing"]),
    *(f"tests/contract/{each}" for each in FOLDERS),
    *("tests/property/test_claims.py", "tests/property/test_lock_machine.py"),
    *("tests/property/test_deadlocks.py", "tests/property/test_record_garbage.py"),
]
FAST = ["-q", "-p", "no:cacheprovider", "-p", "mutants_plugin", "-m", "not slow and not long"]
COVERAGE = """[run]
source = {folder}
omit = {folder}/tests/*, {folder}/emulator/*, {folder}/mutants_plugin.py
data_file = {folder}/.coverage
parallel = true
context = ${{PYTEST_CURRENT_TEST-}}
disable_warnings = no-data-collected, module-not-measured, module-not-imported, already-imported,
    trace-changed
"""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}


# --- the operators ----------------------------------------------------------------------------


@dataclass
class Mutation:
    """A place in a file, the text that comes there instead, and what became of it."""

    file: str
    line: int
    operator: str
    begin: int
    end: int
    text: str
    #: The first and last lines of the statements around it, the innermost first.
    around: list[tuple[int, int]]
    before: str = ""
    after: str = ""
    #: not reached, survived, killed, timed out
    outcome: str = ""
    tests: list[str] = field(default_factory=list)


def mutations(file: str, source: str) -> list[Mutation]:
    """Return all mutations of a source file that the operators know."""
    found: list[Mutation] = []
    starts = [0]
    for text in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(text))

    def visit(node: Any, around: list[tuple[int, int]], in_message: bool) -> None:
        if _is_skipped(node):
            return
        if isinstance(node, ast.stmt):
            around = [(node.lineno, node.end_lineno or node.lineno), *around]
        for old, operator, text in _changes(node, in_message):
            begin = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            found.append(Mutation(file, old.lineno, operator, begin, end, text, around))
        in_message = in_message or isinstance(node, ast.Raise)
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list", "bases"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        visit(child, around, in_message)

    visit(ast.parse(source), [], False)
    return found


def _changes(node: Any, in_message: bool) -> Iterator[tuple[Any, str, str]]:
    """Yield what one node may become: what is replaced, the operator's name, the new text."""
    match node:
        case ast.Compare(left=left, ops=[op, *ops], comparators=others):
            changed = ast.Compare(left, [COMPARISONS[type(op)](), *ops], others)
            yield node, "comparison", f"({ast.unparse(changed)})"
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield node, "and/or", f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, "not", f"({ast.unparse(operand)})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            if not any(map(_is_text, (left, right))):
                swapped = ast.BinOp(left, ARITHMETIC[type(op)](), right)
                yield node, "arithmetic", f"({ast.unparse(swapped)})"
        case ast.Constant(value=bool(value)):
            yield node, "constant", str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield node, "constant", repr(value + 1)
        case ast.Constant(value=str(value)) if value and not in_message and " " not in value:
            yield node, "constant", repr(value + "X")
        case ast.Constant(value=bytes(value)) if value:
            yield node, "constant", repr(value + b"X")
        case ast.Return(value=ast.expr() as result):
            if ast.unparse(result) not in ("None", "False"):
                yield node, "return", "return None"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.AugAssign():
            yield node, "deletion", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Delete():
            yield node, "deletion", "pass"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant):
                yield test, "condition", f"(not {ast.unparse(test)})"


def _is_text(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Constant(value=str() | bytes()):
            return True
    return False


def _is_number(node: ast.AST) -> bool:
    """Return whether it is made of numbers alone."""
    parts = ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop
    return all(
        isinstance(each, parts)
        or (isinstance(each, ast.Constant) and isinstance(each.value, int | float))
        for each in ast.walk(node)
    )


def _is_skipped(node: ast.AST) -> bool:
    """Return whether it is a text, a log call, for type checkers, or the choice of a number."""
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Constant()) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in ("log", "logger", "warnings")
        case ast.Assign(targets=[ast.Name(id="__slots__" | "__all__")]):
            return True
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name.isupper() and _is_number(value)
        case ast.Call(func=ast.Name(id="cast" | "TypeVar" | "ParamSpec")):
            return True
    return False


def drawn(every: list[Mutation], count: int, seed: int) -> list[Mutation]:
    """Draw mutations: each file's share of them is its share of all, by largest remainders."""
    by_file = defaultdict(list)
    for each in every:
        by_file[each.file].append(each)
    count = min(count, len(every))
    shares = {file: count * len(own) / max(1, len(every)) for file, own in by_file.items()}
    quotas = {file: int(share) for file, share in shares.items()}
    rest = count - sum(quotas.values())
    for file in sorted(shares, key=lambda file: (quotas[file] - shares[file], file))[:rest]:
        quotas[file] += 1
    chosen = random.Random(seed)
    return [each for file in sorted(quotas) for each in chosen.sample(by_file[file], quotas[file])]


# --- a copy of the checkout, and pytest in it -------------------------------------------------


class Copy:
    """A private copy of a checkout, in which tests run."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        own = root / ".venv/bin/python"
        self._python = own if own.exists() else Path(sys.executable)
        for name in listed(root):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name, follow_symlinks=False)
        (folder / "mutants_plugin.py").write_text(Path(__file__).read_text())

    def pytest(
        self,
        *arguments: str,
        timeout: float | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        """Run tests; return the exit status, or -1 after the time-out. The output is in a file."""
        path = f"{self.folder}:{self.folder / 'emulator'}"
        env = dict(os.environ, PYTHONPATH=path, **env)
        for name in ("PYTHONDONTWRITEBYTECODE", "PYTEST_CURRENT_TEST"):
            env.pop(name, None)
        with (self.folder / "output.txt").open("w") as output:
            process = subprocess.Popen(
                [str(self._python), "-m", "pytest", *FAST, *arguments],
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                return process.wait(timeout)
            except subprocess.TimeoutExpired:
                return -1
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    @property
    def output(self) -> str:
        return (self.folder / "output.txt").read_text(errors="replace")

    def try_out(self, mutation: Mutation, seconds: float) -> None:
        """Plant a mutation, run its tests, note the outcome, take it out."""
        path = self.folder / mutation.file
        before = path.read_bytes()
        changed = before[: mutation.begin] + mutation.text.encode() + before[mutation.end :]
        mutation.before = before.decode().splitlines()[mutation.line - 1].strip()
        mutation.after = changed.decode().splitlines()[mutation.line - 1].strip()
        if not mutation.tests:
            mutation.outcome = "not reached"
            return
        names = self.folder / "tests.txt"
        names.write_text("\n".join(mutation.tests))
        try:
            self._write(path, changed)
            status = self.pytest("-x", f"@{names}", timeout=5 * seconds + 60)
        finally:
            self._write(path, before)
        mutation.outcome = {0: "survived", -1: "timed out"}.get(status, "killed")

    def _write(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        # Two versions of one second and size would share a compiled form.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


def listed(root: Path) -> list[str]:
    """Return the files of a checkout that git knows or would add."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.check_output(command, text=True).split("\0")
    return sorted(name for name in set(names) if name and (root / name).is_file())


# --- which test reaches which line ------------------------------------------------------------
# As a plug-in of pytest, this file notes the tests and their durations.

_TIMES: dict[str, float] = {}


def pytest_runtest_logstart(nodeid: str) -> None:
    """Tell coverage.py which test begins."""
    if "coverage" in sys.modules:
        current = sys.modules["coverage"].Coverage.current()
        if current is not None:
            current.switch_context(nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """Add up the durations of a test's parts; a test that does not pass takes for ever."""
    seconds = report.duration if report.passed else float("inf")
    _TIMES[report.nodeid] = _TIMES.get(report.nodeid, 0.0) + seconds


def pytest_sessionfinish(session: Any) -> None:
    """Write the durations in the process that knows all of them."""
    if "MUTANTS_TIMES" in os.environ and not hasattr(session.config, "workerinput"):
        Path(os.environ["MUTANTS_TIMES"]).write_text(json.dumps(_TIMES))


def reach(root: Path, tests: list[str], jobs: int) -> Path:
    """Return the folder with durations and coverage of the tests; run them if need be."""
    digest = hashlib.sha256(repr(tests).encode())
    for name in listed(root):
        if name.endswith((".py", ".toml")):
            digest.update(name.encode() + b"\0" + (root / name).read_bytes())
    kept = root / ".run/mutants" / digest.hexdigest()[:16]
    if (kept / "times.json").exists():
        return kept
    import coverage

    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name).resolve()
        copy = Copy(root, folder)
        settings = folder / "coverage.ini"
        settings.write_text(COVERAGE.format(folder=folder))
        times = folder / "times.json"
        env = {"COVERAGE_PROCESS_START": str(settings), "MUTANTS_TIMES": str(times)}
        copy.pytest("-n", str(jobs), "--dist", "loadfile", *tests, env=env)
        print(copy.output[-2000:], flush=True)
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "coverage.sqlite").unlink(missing_ok=True)
        combined = coverage.CoverageData(str(kept / "coverage.sqlite"))
        for part in sorted(folder.glob(".coverage.*")):
            one = coverage.CoverageData(str(part))
            with contextlib.suppress(coverage.CoverageException):  # its process was killed
                one.read()
                combined.update(one, map_path=lambda path: path.removeprefix(f"{folder}/"))
        combined.write()
        shutil.copy(times, kept / "times.json")
    return kept


def tests_of(
    mutation: Mutation,
    reached: Mapping[int, Iterable[str]],
    times: Mapping[str, float],
    limit: int,
    seconds: float,
    seed: int,
) -> list[str]:
    """Choose tests that reach a mutation, from one file after the other; return the fastest first.

    Lines that run at import only, such as default values, are reached by the tests that reach the
    function, the class or the file around them.
    """
    for first, last in [*mutation.around, (0, 10**9)]:
        lines = {line: names for line, names in reached.items() if first <= line <= last}
        names = {name.removesuffix(" (call)") for each in lines.values() for name in each}
        known = sorted(name for name in names if times.get(name, float("inf")) < seconds)
        if known or not lines:  # nothing: the statement never runs, not even at import
            break
    chooser = random.Random(f"{seed} {mutation.file} {mutation.begin}")
    chooser.shuffle(known)
    by_file = defaultdict(list)
    for name in known:
        by_file[name.partition("::")[0]].append(name)
    *_, folder, module = Path(mutation.file).with_suffix("").parts
    turns = sorted(
        # Files about this module or its package come more often than the others.
        (turn / (8 if module in file else 4 if f"/{folder}/" in file else 1), own[turn])
        for file, own in by_file.items()
        for turn in range(len(own))
    )
    chosen: list[str] = []
    for _, name in turns[:limit]:
        if sum(times[each] for each in chosen) + times[name] <= seconds:
            chosen.append(name)
    return sorted(chosen, key=lambda name: times[name])


# --- the run ----------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run; print the score and the survivors."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--paths", nargs="+", default=[f"userlock/{each}" for each in FOLDERS])
    parser.add_argument("--test-paths", nargs="+", default=TESTS)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=35)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tests", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    import coverage

    root: Path = options.root.resolve()
    kept = reach(
        root, [each for each in options.test_paths if (root / each).exists()], options.jobs
    )
    times: dict[str, float] = json.loads((kept / "times.json").read_text())
    failed = [name for name, seconds in times.items() if seconds == float("inf")]
    print(f"{len(times)} tests, {len(failed)} do not pass without a mutation", *failed[:20])
    if len(failed) * 2 >= len(times):
        return 1
    files = [name for name in listed(root) if name.startswith(tuple(options.paths))]
    every = [
        each
        for name in files
        if name.endswith(".py")
        for each in mutations(name, (root / name).read_text())
    ]
    chosen = drawn(every, options.count, options.seed)
    data = coverage.CoverageData(str(kept / "coverage.sqlite"))
    data.read()
    reached = {file: data.contexts_by_lineno(file) for file in {each.file for each in chosen}}
    for each in chosen:
        each.tests = tests_of(
            each, reached[each.file], times, options.tests, options.seconds, options.seed
        )
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(options.jobs):
            copies.put(Copy(root, Path(folder).resolve() / str(number)))

        def one(mutation: Mutation) -> Mutation:
            copy = copies.get()
            try:
                copy.try_out(mutation, sum(times[name] for name in mutation.tests))
            finally:
                copies.put(copy)
            return mutation

        with ThreadPoolExecutor(options.jobs) as pool:
            for done, each in enumerate(pool.map(one, chosen), 1):
                where = f"{each.file}:{each.line}"
                print(f"{done:4} {each.outcome:11} {where} {each.operator}", flush=True)
                save(chosen[:done], options.json)
    report(chosen)
    return 0


def save(tried: list[Mutation], file: Path | None) -> None:
    """Write the outcomes so far as JSON."""
    if file is not None:
        file.write_text(json.dumps([asdict(each) for each in tried], indent=1))


def report(tried: list[Mutation]) -> None:
    """Print the score and the survivors."""
    lost = [each for each in tried if each.outcome in ("killed", "timed out")]
    for each in tried:
        if each not in lost:
            print(f"\n{each.file}:{each.line} {each.operator}: {each.outcome} by", end=" ")
            print(f"{len(each.tests)} tests\n  - {each.before}\n  + {each.after}")
    print(f"\n{len(lost)} of {len(tried)} killed: {100 * len(lost) / max(1, len(tried)):.1f} %")


if __name__ == "__main__":
    sys.exit(main())
