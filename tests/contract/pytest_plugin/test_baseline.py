"""Test a baseline in a test run: known put sites pass, new ones fail, stale ones are reported."""

from __future__ import annotations

import json

import pytest

from tests.contract.pytest_plugin.conftest import FINISH, Project
from userlock.cli import main

CREATE = "app/learners.py::create CreatedWithoutLock Learner"
AWARD = "app/points.py::award PutWithoutLock Learner"

TESTS = """
    @pytest.fixture(autouse=True)
    def ann(datastore):
        Learner(id="ann").put()

    def stored():
        return Learner.get_by_id("ann", use_cache=False).points

    def test_finish():
        points.finish("ann")
        points.finish("ann")
        assert stored() == 10

    def test_locked():
        points.finish_locked("ann")

    def test_award():
        points.award(Learner.get_by_id("ann"))
        assert stored() == 100
"""


@pytest.fixture(autouse=True)
def _tests(project: Project) -> None:
    project.tests(TESTS)


#: Runs without some tests, or without any.
INCOMPLETE = (
    ("-k", "finish"),
    ("tests/test_app.py",),
    ("--ignore=tests/test_none.py",),
    ("--co",),
    ("--fixtures",),
    ("--setup-only",),
    ("--cache-show",),
)


class TestChecking:
    def test_a_new_one_fails_the_test_that_found_it(self, project: Project) -> None:
        project.baseline(AWARD)
        result = project.run("--userlock-baseline=userlock-baseline.txt")
        result.assert_outcomes(passed=2, failed=1)
        result.stdout.fnmatch_lines(
            [
                "*PutWithoutLock: Key('Learner', 'ann') was read and put without its lock.",
                "*put sites without their lock*",
                f"new    {FINISH}",
                "       first in tests/test_app.py::test_finish",
                "FAILED tests/test_app.py::test_finish*",
            ]
        )
        assert result.ret == pytest.ExitCode.TESTS_FAILED

    def test_known_sites_pass_and_the_configuration_can_name_the_file(
        self, project: Project
    ) -> None:
        """Without the baseline all of them fail: the negative control."""
        project.baseline(FINISH, AWARD)
        ini = project.path / "tox.ini"
        ini.write_text(ini.read_text() + "\nuserlock_baseline = userlock-baseline.txt\n")
        result = project.run()
        result.assert_outcomes(passed=3)
        result.stdout.fnmatch_lines(["userlock: baseline userlock-baseline.txt: 2 put sites"])
        result.stdout.no_fnmatch_line("*put sites without their lock*")
        project.run("--userlock-baseline=").assert_outcomes(passed=1, failed=2)

    def test_stale_lines_are_reported(self, project: Project) -> None:
        project.baseline(FINISH, AWARD, CREATE)
        result = project.run("--userlock-baseline=userlock-baseline.txt")
        result.assert_outcomes(passed=3)
        result.stdout.fnmatch_lines([f"stale  {CREATE}", "Stale: not seen in this run.*"])
        assert result.ret == pytest.ExitCode.OK

    @pytest.mark.parametrize("arguments", [("--lf",), *INCOMPLETE])
    def test_but_not_by_a_run_of_some_tests(
        self, project: Project, arguments: tuple[str, ...]
    ) -> None:
        project.tests("def test_none():\n    pass\n", "test_none.py")
        project.baseline(FINISH, AWARD, CREATE)
        result = project.run("--userlock-baseline=userlock-baseline.txt", *arguments)
        assert result.ret == pytest.ExitCode.OK
        result.stdout.no_fnmatch_line("stale*")

    def test_a_missing_or_invalid_file(self, project: Project) -> None:
        result = project.run("--userlock-baseline=userlock-baseline.txt")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*there is no baseline *. To fix it: *baseline-write*"])
        project.baseline("<<<<<<< HEAD")
        result = project.run("--userlock-baseline=userlock-baseline.txt")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*line 1: '<<<<<<< HEAD' names no put site*"])
        result = project.run("--userlock-baseline-write", "--userlock-baseline=no/such.txt")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result = project.run("--userlock-report=tests")
        assert result.ret == pytest.ExitCode.USAGE_ERROR


class TestSwallowedViolations:
    @pytest.fixture(autouse=True)
    def _known(self, project: Project) -> None:
        project.baseline(AWARD)

    def run(self, project: Project, source: str) -> pytest.RunResult:
        project.tests(source)
        return project.run("--userlock-baseline=userlock-baseline.txt")

    def test_by_the_application(self, project: Project) -> None:
        result = self.run(
            project,
            """
            def test_careless():
                Learner(id="ann").put()
                points.finish_carelessly("ann")
            """,
        )
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [
                "This test passes, but new put sites are not covered by their lock:",
                FINISH,
                "*To fix it:*",
                f"new    {FINISH}",
            ]
        )

    def test_only_logged_because_the_application_says_so(self, project: Project) -> None:
        result = self.run(
            project,
            """
            @pytest.fixture
            def app(userlock_service):
                userlock.configure(enforcement="log")

            def test_logged(app):
                Learner(id="ann").put()
                points.finish("ann")
            """,
        )
        result.assert_outcomes(failed=1)

    def test_in_a_fixture(self, project: Project) -> None:
        result = self.run(
            project,
            """
            @pytest.fixture
            def ann(datastore):
                Learner(id="ann").put()
                points.finish_carelessly("ann")

            def test_fixture(ann):
                pass
            """,
        )
        result.assert_outcomes(errors=1)

    def test_a_violation_that_the_test_expects(self, project: Project) -> None:
        """The negative control: the same violation, caught by the test."""
        result = self.run(
            project,
            """
            def test_expects_it():
                Learner(id="ann").put()
                with pytest.raises(userlock.PutWithoutLock):
                    points.finish("ann")
                pytest.raises(userlock.PutWithoutLock, points.finish, "ann")
            """,
        )
        result.assert_outcomes(passed=1)
        result.stdout.no_fnmatch_line("new *")


class TestWriting:
    def test_makes_the_file_and_lets_everything_pass(self, project: Project) -> None:
        result = project.run("--userlock-baseline-write")
        result.assert_outcomes(passed=3)
        assert project.known() == [AWARD, FINISH]
        result.stdout.fnmatch_lines(["*baseline.txt: 2 put sites; 2 added, 0 removed"])
        project.run("--userlock-baseline=userlock-baseline.txt").assert_outcomes(passed=3)

    def test_removes_stale_lines(self, project: Project) -> None:
        project.baseline("# a note of ours", f"{AWARD}  # ticket 4711", CREATE)
        result = project.run("--userlock-baseline-write")
        result.stdout.fnmatch_lines(
            [f"+ {FINISH}", f"- {CREATE}", "*: 2 put sites; 1 added, 1 removed"]
        )
        assert project.known() == [f"{AWARD}  # ticket 4711", FINISH]

    @pytest.mark.parametrize("arguments", INCOMPLETE)
    def test_but_not_by_a_run_of_some_tests(
        self, project: Project, arguments: tuple[str, ...]
    ) -> None:
        project.tests("def test_none():\n    pass\n", "test_none.py")
        project.baseline(AWARD, CREATE, FINISH)
        result = project.run("--userlock-baseline-write", *arguments)
        assert project.known() == [CREATE, AWARD, FINISH]
        result.stdout.fnmatch_lines(
            ["* put site* not seen, and kept: tests failed, were skipped or left out"]
        )

    @pytest.mark.parametrize("test", ["raise ZeroDivisionError", "pytest.skip('no server')"])
    def test_nor_by_one_that_failed_or_was_skipped(self, project: Project, test: str) -> None:
        project.baseline(CREATE)
        project.tests(f"{TESTS}\n    def test_more():\n        {test}\n")
        project.run("--userlock-baseline-write")
        assert project.known() == [CREATE, AWARD, FINISH]


class TestReports:
    def test_a_run_that_only_reports_lets_everything_pass(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = project.run("--userlock-report=report.jsonl")
        result.assert_outcomes(passed=3)
        report = (project.path / "report.jsonl").read_text()
        award, finish = map(json.loads, report.splitlines())
        assert finish["userlock_site"]["put"]["file"] == "app/points.py"
        assert finish["userlock_site"]["put"]["line"] > 1
        assert (finish["count"], finish["test"]) == (2, "tests/test_app.py::test_finish")
        assert award["userlock_site"]["read"]["file"] == "tests/test_app.py"
        monkeypatch.chdir(project.path)
        assert main(["baseline", "write", "report.jsonl"]) == 0
        assert project.known() == [AWARD, FINISH]


@pytest.mark.slow
class TestWithXdist:
    def test_the_sites_of_the_workers_are_merged(self, project: Project) -> None:
        project.tests(TESTS)
        project.tests("def test_more():\n    Learner(id='ann').put()\n", "test_more.py")
        result = project.run("-n2", "--userlock-baseline-write", "--userlock-report=report.jsonl")
        result.assert_outcomes(passed=4)
        assert project.known() == [AWARD, FINISH]
        assert len((project.path / "report.jsonl").read_text().splitlines()) == 2

    def test_new_and_stale_ones(self, project: Project) -> None:
        project.baseline(AWARD, CREATE)
        result = project.run("-n2", "--userlock-baseline=userlock-baseline.txt")
        result.assert_outcomes(passed=2, failed=1)
        result.stdout.fnmatch_lines([f"new    {FINISH}"])
        project.baseline(AWARD, CREATE, FINISH)
        result = project.run("-n2", "--userlock-baseline=userlock-baseline.txt")
        result.assert_outcomes(passed=3)
        result.stdout.fnmatch_lines([f"stale  {CREATE}"])
