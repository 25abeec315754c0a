"""The public API is what docs/reference documents, and is loaded no further than needed."""

from __future__ import annotations

import re
import subprocess
import sys
import types

import pytest

import userlock
from tests.documents import ROOT

DOCUMENTED = {
    name
    for page in (ROOT / "docs" / "reference").glob("*.md")
    for name in re.findall(r"^::: userlock\.(\w+)$", page.read_text(), re.MULTILINE)
}


def test_the_public_names_are_those_of_the_reference() -> None:
    assert set(userlock.__all__) == DOCUMENTED


def test_nothing_else_looks_public() -> None:
    others = {
        name
        for name in dir(userlock)
        if not name.startswith("_") and name not in DOCUMENTED
        if not isinstance(getattr(userlock, name), types.ModuleType)
    }
    assert others <= {"annotations", "TYPE_CHECKING"}


def test_a_name_that_is_none() -> None:
    """Type checkers see that, too: without the error, the `ignore` would be unused."""
    with pytest.raises(AttributeError, match="'userlock' has no attribute 'globl_lock'"):
        userlock.globl_lock  # type: ignore[attr-defined]  # noqa: B018


def test_each_has_a_docstring() -> None:
    values = {name: getattr(userlock, name) for name in DOCUMENTED - {"__version__"}}
    assert [name for name, value in values.items() if not (value.__doc__ or "").strip()] == []


def test_every_error_is_under_one_base() -> None:
    values = [getattr(userlock, name) for name in DOCUMENTED]
    errors = [each for each in values if isinstance(each, type) and issubclass(each, Exception)]
    assert len(errors) > 15
    # Errors of stores for the service never leave it; see their docstring.
    others = [error for error in errors if not issubclass(error, userlock.UserLockError)]
    assert others == [userlock.StoreUnavailable]


# --- what it loads ------------------------------------------------------------------------------

NO_NDB = "assert not [name for name in sys.modules if name.startswith('google.cloud')]"
HOOKED = """
from google.cloud.ndb import _transaction
assert hasattr(_transaction.transaction_async_, "__wrapped__")
"""
LOCK = """
import userlock
userlock.configure(service=userlock.LockService.from_url("memory://"))
with userlock.global_lock("ann") as lock:
    assert lock.held
"""


@pytest.mark.parametrize(
    ("program", "afterwards"),
    [
        pytest.param("import userlock; userlock.__version__", NO_NDB, id="import"),
        pytest.param(LOCK, NO_NDB, id="lock"),
        pytest.param("from userlock import events, stores, testing", NO_NDB, id="modules"),
        pytest.param(
            "from userlock.cli import main; main(['--store', 'memory://', 'holder', 'ann'])",
            NO_NDB,
            id="command line",
        ),
        pytest.param("from google.cloud import ndb" + LOCK, HOOKED, id="lock beside ndb"),
        pytest.param("import userlock; userlock.UserModel", HOOKED, id="model"),
        pytest.param("from userlock import *; global_lock, UserModel", HOOKED, id="all names"),
        pytest.param("import userlock.ndb.wire", HOOKED, id="module of the model layer"),
        pytest.param("import userlock.contrib.flask", HOOKED, id="web integration"),
        pytest.param("import userlock.outbox", HOOKED, id="outbox"),
    ],
)
def test_ndb_is_loaded_only_with_the_gate(program: str, afterwards: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\n{afterwards}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
