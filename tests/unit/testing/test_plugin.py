"""Test that the plugin recognises test code."""

from __future__ import annotations

from pathlib import Path

import pytest

from userlock.testing.plugin import TestCode


@pytest.fixture
def code(request: pytest.FixtureRequest) -> TestCode:
    code = TestCode(
        Path("/src"), ["tests", "shared/factories.py", "app/fake_*.py", "*/site-packages/maker/*"]
    )
    code.pytest_itemcollected(request.node)
    return code


@pytest.mark.parametrize(
    "file",
    [
        "/src/tests/test_points.py",
        "/src/tests/deep/helpers.py",
        __file__,
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
