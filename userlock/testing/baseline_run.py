"""Run tests with a baseline: known put sites pass, and a new one fails the test that found it.

A violation at a known site is let pass, as with `enforcement="log"`. One at another site is raised.
If the application swallows it, or only logs violations, the test fails at its end, unless the test
itself caught the error.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from userlock.errors import WriteViolation
from userlock.events import Event, Violation
from userlock.sites import FACTS_KEY, Baseline, Project, Sighting, Site, facts_of, write_whole
from userlock.words import counted

#: The key of the sites in the output of xdist's workers.
_OUTPUT_KEY = "userlock_sites"
#: Files that catch an error for a test that calls `pytest.raises(error, function)`.
_TEST_TOOLS = ("/_pytest/", "/unittest/")


@dataclasses.dataclass(eq=False)
class BaselineRun:
    """Plugin for one test run, in each of xdist's processes. Only the controller writes files.

    `path`: the baseline file, if any; `writing`: whether to write it; `report`: another file to
    write. `seen`: the put sites of this run; `active`: whether they are watched now, which they are
    not in tests of violations.
    """

    config: pytest.Config
    is_test_code: Callable[[str], bool]
    baseline: Baseline
    path: Path | None
    writing: bool
    report: Path | None

    def __post_init__(self) -> None:
        self.seen: dict[Site, Sighting] = {}
        self.active = True
        self._project = Project(self.config.rootpath)
        #: Every site is tolerated, to be written down.
        self._recording = self.writing or self.path is None
        self._partial = _is_partial(self.config)
        self._passed: set[str] = set()
        self._test = ""
        #: New violations of the current phase, in order.
        self._new: list[tuple[Site, WriteViolation]] = []
        self._lines: list[str] = []

    def tolerates(self, violation: WriteViolation) -> bool:
        site, _ = self._site_of(violation)
        return self.active and site.is_mistake and self._is_known(site)

    def listen(self, event: Event) -> None:
        if not (self.active and isinstance(event, Violation)):
            return
        site, facts = self._site_of(event.error)
        if site.is_mistake and self._is_known(site):
            self._note(site, facts, 1, self._test)
        elif site.is_mistake:
            self._new.append((site, event.error))

    def _is_known(self, site: Site) -> bool:
        return self._recording or site in self.baseline

    def _note(self, site: Site, facts: dict[str, Any], times: int, test: str) -> None:
        self.seen.setdefault(site, Sighting(facts, test=test)).times += times

    def _site_of(self, violation: WriteViolation) -> tuple[Site, dict[str, Any]]:
        facts = facts_of(violation)
        site = self._project.site_of(facts)
        for place in (facts["put"], facts["read"]):
            if place is not None:
                place["file"] = self._project.name_of(place["file"])
        return site, facts

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._test = item.nodeid
        self._new.clear()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        try:
            yield
        except BaseException:
            self._settle()
            raise
        # The test is about the violations that it caught itself.
        self._new = [new for new in self._new if not self._caught_by_test(new[1].__traceback__)]
        unnoticed = self._settle()
        if unnoticed:
            pytest.fail(
                "This test passes, but new put sites are not covered by their lock:\n\n"
                + "\n\n".join(f"{site}\n{error}" for site, error in unnoticed.items()),
                pytrace=False,
            )

    # The same for each phase of a test.
    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup

    def _settle(self) -> dict[Site, WriteViolation]:
        """Note the new sites; return each with its first violation."""
        new, self._new = self._new, []
        for site, error in new:
            self._note(site, self._site_of(error)[1], 1, self._test)
        return dict(reversed(new))

    def _caught_by_test(self, traceback: TracebackType | None) -> bool:
        """Return whether an error reached test code: its traceback begins where it was caught."""
        if traceback is None:
            return False
        file = traceback.tb_frame.f_code.co_filename
        return self.is_test_code(file) or any(tool in file for tool in _TEST_TOOLS)

    def pytest_report_header(self) -> str:
        if self.path is None:
            return "userlock: every put site is tolerated, and reported"
        known = f"{self._shown(self.path)}: {counted(len(self.baseline), 'put site')}"
        return f"userlock: baseline {known}{', to be written' if self.writing else ''}"

    def _shown(self, path: Path) -> str:
        here = self.config.invocation_params.dir
        return str(path.relative_to(here) if path.is_relative_to(here) else path)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._partial = self._partial or bool(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._partial = self._partial or not report.passed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over the sites of a worker of xdist. One that crashed has none."""
        output = getattr(node, "workeroutput", {}).get(_OUTPUT_KEY)
        if output is None:
            self._partial = True
            return
        self._partial = self._partial or output["partial"]
        for line, facts, times, test in output["seen"]:
            self._note(Site.parse(line), facts, times, test)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            seen = [
                (str(site), each.facts, each.times, each.test) for site, each in self.seen.items()
            ]
            output[_OUTPUT_KEY] = {"partial": self._partial, "seen": seen}
            return
        # A test that failed, or was not run, may have ended before a known put.
        passed = 0 < len(self._passed) == session.testscollected
        whole = passed and not self._partial and exitstatus == pytest.ExitCode.OK
        if self.report is not None:
            self._write_report(self.report)
        if self.path is not None and self.writing:
            self._write(self.path, whole=whole)
        elif self.path is not None:
            self._compare(whole=whole)

    def _write_report(self, path: Path) -> None:
        lines = [
            json.dumps({FACTS_KEY: each.facts, "count": each.times, "test": each.test}) + "\n"
            for _, each in sorted(self.seen.items(), key=lambda item: item[0])
        ]
        write_whole(path, "".join(lines))
        self._lines.append(f"{self._shown(path)}: {counted(len(lines), 'put site')}")

    def _write(self, path: Path, *, whole: bool) -> None:
        stale = self.baseline.compare(self.seen).stale
        update = self.baseline.rewrite(path, self.seen, keep=not whole)
        self._lines += update.lines(self._shown(path))
        if stale and not whole:
            self._lines.append(
                f"{counted(len(stale), 'put site')} not seen, and kept: tests failed, were "
                f"skipped or left out"
            )

    def _compare(self, *, whole: bool) -> None:
        new, stale = self.baseline.compare(self.seen)
        for site in new:
            self._lines += [f"new    {site}", f"       first in {self.seen[site].test}"]
        if stale and whole:
            self._lines += [f"stale  {site}" for site in stale]
            self._lines.append(
                "Stale: not seen in this run. To fix it: remove these lines, or run pytest with "
                "--userlock-baseline-write"
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._lines:
            terminalreporter.write_sep("=", "put sites without their lock")
            for line in self._lines:
                terminalreporter.write_line(line)


def _is_partial(config: pytest.Config) -> bool:
    typed = config.invocation_params.args
    if config.getoption("lf", False) or any(str(each).startswith("--ignore") for each in typed):
        return True
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return False
    here = config.invocation_params.dir
    named = [here / arg.partition("::")[0] for arg in config.args]
    if any("::" in arg for arg in config.args) or not all(each.is_dir() for each in named):
        return True
    # Folders only: are all tests below them?
    usual = [config.rootpath / each for each in config.getini("testpaths")]
    return not all(any(path.is_relative_to(each) for each in named) for path in usual)
