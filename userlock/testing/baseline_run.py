"""A test run with a baseline: files and a summary of the put sites that were seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from userlock.baseline import Baseline, write_whole
from userlock.sites import FACTS_KEY, Site
from userlock.testing.known_sites import KnownSites
from userlock.words import counted

#: For what xdist's workers tell their controller.
_OUTPUT_KEY = "userlock_sites"


class BaselineRun:
    """Plugin for one test run, in each of xdist's processes. Only the controller writes.

    Args:
        config: of the run.
        sites: what is seen.
        path: the baseline file; None: there is none.
        writing: whether to write it.
        report: where to write a report, if anywhere.
    """

    def __init__(
        self,
        config: pytest.Config,
        sites: KnownSites,
        path: Path | None,
        *,
        writing: bool,
        report: Path | None,
    ) -> None:
        self._config = config
        self._sites = sites
        self._path = path
        self._writing = writing
        self._report = report
        self._partial = _chosen(config)
        self._lines: list[str] = []

    def pytest_report_header(self) -> str:
        if self._path is None:
            return "userlock: every put site is tolerated, and reported"
        known = f"{self._shown(self._path)}: {counted(len(self._sites.baseline), 'put site')}"
        return f"userlock: baseline {known}{', to be written' if self._writing else ''}"

    def _shown(self, path: Path) -> str:
        here = self._config.invocation_params.dir
        return str(path.relative_to(here) if path.is_relative_to(here) else path)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._partial = self._partial or bool(items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """xdist: a worker has ended. One that crashed has told nothing."""
        output = getattr(node, "workeroutput", {}).get(_OUTPUT_KEY)
        if output is None:
            self._partial = True
            return
        self._partial = self._partial or output["partial"]
        for line, facts, times, test in output["seen"]:
            self._sites.note(Site.parse(line), facts, times, test)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        seen = self._sites.seen
        workeroutput = getattr(self._config, "workeroutput", None)
        if workeroutput is not None:
            workeroutput[_OUTPUT_KEY] = {
                "partial": self._partial,
                "seen": [
                    (str(site), each.facts, each.times, each.test) for site, each in seen.items()
                ],
            }
            return
        # A test that failed may have ended before a put that is known.
        whole = not self._partial and exitstatus == pytest.ExitCode.OK
        if self._report is not None:
            self._write_report(self._report)
        if self._path is None:
            return
        if self._writing:
            self._write(self._path, whole=whole)
        else:
            self._compare(whole=whole)

    def _write_report(self, path: Path) -> None:
        seen = sorted(self._sites.seen.items(), key=lambda item: item[0])
        write_whole(
            path,
            "".join(
                json.dumps({FACTS_KEY: each.facts, "count": each.times, "test": each.test}) + "\n"
                for _, each in seen
            ),
        )
        self._lines.append(f"{self._shown(path)}: {counted(len(seen), 'put site')}")

    def _write(self, path: Path, *, whole: bool) -> None:
        baseline: Baseline = self._sites.baseline
        added, stale = baseline.compare(self._sites.seen)
        new = baseline.updated(self._sites.seen, keep=not whole)
        new.write(path)
        removed = stale if whole else []
        self._lines += [f"+ {site}" for site in added]
        self._lines += [f"- {site}" for site in removed]
        self._lines.append(
            f"{self._shown(path)}: {counted(len(new), 'put site')}; {len(added)} added, "
            f"{len(removed)} removed"
        )
        if stale and not whole:
            self._lines.append(
                f"{counted(len(stale), 'put site')} not seen, and kept: tests failed, or were "
                f"left out"
            )

    def _compare(self, *, whole: bool) -> None:
        new, stale = self._sites.baseline.compare(self._sites.seen)
        for site in new:
            seen = self._sites.seen[site]
            self._lines.append(f"new    {site}")
            self._lines.append(f"       first in {seen.test}")
        if whole:
            self._lines += [f"stale  {site}" for site in stale]
            if stale:
                self._lines.append(
                    "Stale: not seen in this run. Remove them, or have it done: "
                    "--userlock-baseline-write"
                )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._lines:
            terminalreporter.write_sep("=", "put sites without their lock")
            for line in self._lines:
                terminalreporter.write_line(line)


def _chosen(config: pytest.Config) -> bool:
    """Return whether the command line selects some tests only."""
    if config.getoption("lf", False):
        return True
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return False
    here = config.invocation_params.dir
    named = [here / arg.partition("::")[0] for arg in config.args]
    if any("::" in arg for arg in config.args) or not all(each.is_dir() for each in named):
        return True
    # All folders: is everything below them?
    usual = [config.rootpath / each for each in config.getini("testpaths")]
    return not all(any(path.is_relative_to(each) for each in named) for path in usual)
