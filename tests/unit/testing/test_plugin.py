"""Test that the plugin is cheap for projects that do not use it, and recognises test code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from userlock.testing.test_code import TestCode


def test_it_comes_without_ndb() -> None:
    """pytest imports the plugin in every run."""
    program = (
        "import userlock.testing.plugin, sys\n"
        "heavy = {'google.cloud.ndb', 'userlock.stores', 'userlock.testing.contract'}\n"
        "print(heavy & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_a_clock_comes_without_pytest() -> None:
    program = (
        "import sys; sys.modules['pytest'] = None\n"
        "from userlock.testing import ManualClock, LockFaults, allow_unlocked, held_lock\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def code() -> TestCode:
    code = TestCode(
        Path("/src"), ["tests", "shared/factories.py", "app/fake_*.py", "*/site-packages/maker/*"]
    )
    code.add_module("/src/app/test_points.py")
    return code


@pytest.mark.parametrize(
    "file",
    [
        "/src/tests/test_points.py",
        "/src/tests/deep/helpers.py",
        "/src/app/test_points.py",
        "/src/app/conftest.py",
        "/elsewhere/conftest.py",
        "/src/shared/factories.py",
        "/src/app/fake_mail.py",
        "/usr/lib/site-packages/maker/ndb.py",
    ],
)
def test_test_code(code: TestCode, file: str) -> None:
    assert code(file)
    assert code(file)


@pytest.mark.parametrize(
    "file",
    [
        "/src/app/points.py",
        "/src/app/tests/views.py",  # tests of pupils
        "/src/testsuite.py",
        "/src/tests.py",
        "/src/app/test_runner.py",  # pytest has found no test in it
        "/src/shared/other.py",
        "/usr/lib/site-packages/other/ndb.py",
        "<string>",
    ],
)
def test_other_code(code: TestCode, file: str) -> None:
    assert not code(file)
