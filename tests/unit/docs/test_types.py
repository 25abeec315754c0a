"""The code of the documentation is clean in mypy and pyright.

That of README.md and docs/tutorial.md as it is, with the settings of docs/models.md. The other
blocks are parts of programs: there the checkers ask neither for types of each function nor what a
look-up that finds nothing does, and take no types from ndb.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.cloud import ndb

import userlock
from tests.documents import ROOT, Page
from tests.unit.docs.blocks import modules, stubs
from userlock.ndb.model import Model

HANDLER = Page("README.md").take("python", "# points.py").text
TUTORIAL = Page("docs/tutorial.md")
LOSE = TUTORIAL.take("python", "# lose.py").text
POINTS = TUTORIAL.take("python", "# points.py").text
FIXED = TUTORIAL.take("python", "def bonus").text
MYPY_SETTINGS = Page("docs/models.md").take("toml", "google.cloud")

CODE = {
    "readme": HANDLER,
    "lose": LOSE,
    "tutorial": POINTS,
    "fixed": re.sub(r'@app\.post\("[^"]*/bonus"\)\n(?:.+\n)+', lambda _: FIXED, POINTS),
}

#: Mistakes of an app, and types, each with what a checker says of them.
MISTAKES = """\
from typing import Any, assert_type

from google.cloud import ndb

import userlock
from userlock.idempotency import Flow

class User(userlock.UserModel):
    _lock_id_from_key = userlock.key_id
    points: Any = ndb.IntegerProperty()

assert_type(User.get_or_insert("ann"), User)
assert_type(User.get_by_id("ann"), User | None)
assert_type(User.query(User.points > 5).order(User.points).fetch(10), list[User])
assert_type(User.query().get(), User | None)
assert_type([user for user in User.query()], list[User])
assert_type(User.query().count(), int)
with userlock.fetch_under_user_write_lock(User(id="ann")) as user:
    assert_type(user, User)
with userlock.global_lock("ann", priority="batch"), userlock.scope(priority="interactive"):
    User.query().fetch(keys_only=True)[0].delete()
User(id="ann").put().get().key.id()
assert_type([key for key in User.query().iter(keys_only=True)], list[ndb.Key])
assert_type([user for user in User.query().iter()], list[User])


@userlock.transactional
def bare(points: int) -> str:
    return str(points)
@userlock.transactional(retries=1)
def called(points: int) -> str:
    return str(points)
assert_type(bare(5), str)
assert_type(called(points=5), str)

def pay(flow: Flow) -> None:
    flow.external("charge", lambda key: f"charge-{key}")
    flow.external("charge", lambda key, at: f"{key} {at}", provider="eu")
    flow.external("charge", lambda: "charge-1")  # wrong

User.get_by_id("ann").points  # wrong
userlock.global_lock("ann", priority="urgent")  # wrong
userlock.acquire_lock("ann", priority="low")  # wrong
userlock.fetch_under_user_write_lock("ann")  # wrong
bare("five")  # wrong
called()  # wrong
userlock.transactional(3)  # wrong
"""
#: The files with userlock, and those that need the setting of the page: a plain ndb.Model.
WITH = ("readme.py", "tutorial.py", "fixed.py", "mistakes.py")
WITHOUT = ("lose.py",)
WRONG = {number for number, line in enumerate(MISTAKES.splitlines(), 1) if line.endswith("# wrong")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a project with the code of the pages and the settings of docs/models.md."""
    folder = tmp_path_factory.mktemp("typed")
    for name, text in {**CODE, "mistakes": MISTAKES}.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "pyproject.toml").write_text(MYPY_SETTINGS.text)
    return folder


#: What is not asked of the other blocks.
MYPY_LENIENT = [
    f"--disable-error-code={code}"
    for code in ("no-untyped-def", "no-untyped-call", "no-any-return", "union-attr")
] + ["--disable-error-code=var-annotated"]
PYRIGHT_LENIENT = """
[tool.pyright]
useLibraryCodeForTypes = false
reportMissingModuleSource = false
reportOptionalMemberAccess = false
"""
#: The type of a decorator that the page takes as given is not known.
ANY_DECORATOR = '# mypy: disable-error-code="untyped-decorator"\n'
#: Mistakes, as blocks.
WRONG_BLOCKS = {
    "wrong_call": 'import userlock\nuserlock.global_lock("ann", priority="urgent")\n',
    "wrong_name": "import userlock\nuserlock.globl_lock\n",
}


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a project with each block of the documentation as a module."""
    folder = tmp_path_factory.mktemp("blocks")
    for module in modules():
        given = "from anything import" in module.text
        text = (ANY_DECORATOR if given else "") + module.text
        (folder / f"{module.name}.py").write_text(text)
    for name, text in stubs():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name, text in WRONG_BLOCKS.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "pyproject.toml").write_text(MYPY_SETTINGS.text + PYRIGHT_LENIENT)
    return folder


def mypy(folder: Path, *arguments: str) -> Iterator[tuple[str, int, str]]:
    done = run(folder, "mypy", "--no-error-summary", "--output=json", *arguments)
    for line in done.splitlines():
        found = json.loads(line)
        yield found["file"], found["line"], found["message"]


def pyright(folder: Path, *arguments: str) -> Iterator[tuple[str, int, str]]:
    interpreter = f"--pythonpath={sys.executable}"
    files = [each for each in arguments if not each.startswith("-")]  # the others are mypy's
    done = run(folder, "pyright", "--outputjson", interpreter, *files)
    for found in json.loads(done)["generalDiagnostics"]:
        yield Path(found["file"]).name, found["range"]["start"]["line"] + 1, found["message"]


def run(folder: Path, checker: str, *arguments: str) -> str:
    program = Path(sys.executable).with_name(checker)
    done = subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


Checker = Callable[..., Iterator[tuple[str, int, str]]]
CHECKERS = pytest.mark.parametrize("checker", [mypy, pyright], ids=lambda each: each.__name__)


@CHECKERS
def test_code_is_clean_and_mistakes_are_found(checker: Checker, folder: Path) -> None:
    """The negative control as well: of code without types, nothing would be said."""
    found = [*checker(folder, "--strict", *WITH), *checker(folder, *WITHOUT)]
    assert {(file, line) for file, line, _ in found} == {("mistakes.py", n) for n in WRONG}, found


@CHECKERS
def test_each_block_is_clean(checker: Checker, blocks: Path) -> None:
    """The last two are the negative control. A message names the page and the line of the block."""
    files = sorted(each.name for each in blocks.glob("*.py"))
    found = list(checker(blocks, *MYPY_LENIENT, *files))
    assert {file.removesuffix(".py") for file, _, _ in found} == set(WRONG_BLOCKS), found


# --- at run time ----------------------------------------------------------------------------------


def test_at_run_time_there_is_only_what_ndb_has() -> None:
    for name in ("get_by_id", "query", "key"):  # `put` takes `unguarded`
        assert name not in vars(Model)
        assert name not in vars(userlock.UserModel)
        assert name in vars(ndb.Model)


def test_the_types_of_the_query_are_those_of_ndb() -> None:
    told = (ROOT / "userlock/ndb/typed.pyi").read_text().partition("class Query(")[2]
    methods = set(re.findall(r"^    def (\w+)", told, re.MULTILINE))
    assert methods > {"fetch", "get", "order"}
    assert {name for name in methods if not hasattr(ndb.Query, name)} == set()
