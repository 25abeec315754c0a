"""A test that fails by an error of the library shows the application's line."""

from __future__ import annotations

import re

import pytest

import userlock
from tests.contract.pytest_plugin.conftest import Project
from userlock.lock.scope import LockScope

FAILING = """
    def test_finish():
        Learner(id="ann").put()
        points.finish("ann")
    """
#: Places in a traceback, as pytest shows them.
PLACE = r"^(\S+\.py):\d+: "


def places(result: pytest.RunResult) -> list[str]:
    return re.findall(PLACE, result.stdout.str(), re.MULTILINE)


@pytest.mark.parametrize("style", ["long", "short"])
def test_the_last_line_is_the_application_s(project: Project, style: str) -> None:
    project.tests(FAILING)
    result = project.run(f"--tb={style}")
    assert places(result) == ["tests/test_app.py", "app/points.py"]
    result.stdout.fnmatch_lines(["*learner.put()", "E *PutWithoutLock: Key('Learner', 'ann') *"])


@pytest.mark.parametrize(
    "tests",
    [
        """
        import unittest

        class TestFinish(unittest.TestCase):
            def test_finish(self):
                Learner(id="ann").put()
                points.finish("ann")
        """,
        """
        def test_finish():
            Learner(id="ann").put()
            try:
                points.finish("ann")
            except userlock.WriteViolation as error:
                raise RuntimeError from error
        """,
    ],
    ids=["of a TestCase", "as a cause"],
)
def test_wherever_pytest_finds_the_error(project: Project, tests: str) -> None:
    project.tests(tests)
    result = project.run()
    assert set(places(result)) == {"tests/test_app.py", "app/points.py"}
    result.stdout.fnmatch_lines(["E *PutWithoutLock: Key('Learner', 'ann') *"])


def test_a_lock_that_is_not_free(project: Project) -> None:
    project.tests(
        """
        def test_finish(userlock_service):
            userlock_service.acquire("ann")
            userlock.configure(service=userlock_service)
            with userlock.global_lock("ann", wait_timeout=0):
                pass
        """
    )
    assert places(project.run()) == ["tests/test_app.py"]


def test_the_whole_of_it(project: Project) -> None:
    project.tests(FAILING)
    result = project.run("--full-trace")
    assert len(places(result)) > 5


def test_a_bug_of_the_library_is_shown(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LockScope, "_acquired", lambda *_args, **_options: 1 / 0)
    project.tests(
        """
        def test_finish():
            points.finish_locked("ann")
        """
    )
    result = project.run()
    assert any(place.endswith("userlock/lock/api.py") for place in places(result))


def test_nothing_is_left_in_the_modules(project: Project) -> None:
    project.tests(FAILING)
    project.run().assert_outcomes(failed=1)
    assert not hasattr(userlock.errors, "__tracebackhide__")
