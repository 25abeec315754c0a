"""Extend pytest: fixtures for tests of applications, and the baseline of put sites.

    --userlock-baseline=FILE     let the put sites in FILE pass, and fail the tests that find others
    --userlock-baseline-write    write the put sites found to FILE instead
    --userlock-report=FILE       write a report of the put sites found, for `userlock baseline`

In the configuration, `userlock_baseline` names the file for every run, and `userlock_test_code`
lists test code (see `TestCode`); if it is empty, test code is checked like any other. Two markers:

    @pytest.mark.userlock_strict           for tests of locks: test code is checked as well, and
                                           no put site is tolerated
    @pytest.mark.allow_unlocked("reason")  no write is checked in this test

Each test begins without the violations of others, so each test logs its own. The traceback of a
test that fails by an error of the library ends at the application's line.
"""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from types import ModuleType
from unittest import TestCase

import pytest

from userlock.errors import UserLockError
from userlock.events import LISTENERS
from userlock.reports import REPORTS
from userlock.sites import DEFAULT_NAME, Baseline, BaselineError
from userlock.testing.baseline_run import BaselineRun
from userlock.testing.fixtures import (
    allow_unlocked,
    held_lock,
    userlock_clock,
    userlock_faults,
    userlock_service,
)

__all__ = ["allow_unlocked", "held_lock", "userlock_clock", "userlock_faults", "userlock_service"]

pytest.register_assert_rewrite("userlock.testing.contract")

#: The usual folders of test code, beside test modules and conftest.py files.
_USUAL = ("tests", "test")
#: The modules whose frames are hidden, but for the suites for stores and engines, which are tests.
_HIDDEN = ("userlock.", "google.cloud.ndb.")
_SHOWN = ("userlock.testing.contract",)


class TestCode:
    """Recognises test code by its file. Its puts only arrange data, and so are not checked.

    Test code are test modules (files in which pytest has found a test function; doctests do not
    count), files named conftest.py, and the files `listed`: folders and files below the `root`; or
    patterns with `*`, for names from the root and for full names. The call site of a put decides.
    """

    __test__ = False  # not a test, in spite of its name

    def __init__(self, root: Path, listed: Sequence[str]) -> None:
        self._root = root
        self._folders = [root / each for each in listed if "*" not in each]
        self._patterns = [each for each in listed if "*" in each]
        self._known: dict[str, bool] = {}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        if isinstance(item, pytest.Function):
            self._known[str(item.path)] = True

    def __call__(self, file: str) -> bool:
        found = self._known.get(file)
        if found is None:
            found = self._known[file] = self._is_listed(Path(file))
        return found

    def _is_listed(self, path: Path) -> bool:
        if path.name == "conftest.py" or any(map(path.is_relative_to, self._folders)):
            return True
        names = [str(path)]
        if path.is_relative_to(self._root):
            names.append(str(path.relative_to(self._root)))
        return any(
            fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self._patterns
        )


#: The name of the plugin that runs tests with a baseline.
_RUN = "userlock-baseline-run"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("userlock", "one lock per user")
    group.addoption(
        "--userlock-baseline",
        metavar="FILE",
        help="let the put sites in FILE pass, and fail the tests that find others",
    )
    group.addoption(
        "--userlock-baseline-write",
        action="store_true",
        help=f"write the put sites found to the baseline (by default {DEFAULT_NAME})",
    )
    group.addoption(
        "--userlock-report",
        metavar="FILE",
        help="write a report of the put sites found, for `userlock baseline`",
    )
    parser.addini("userlock_baseline", "the baseline for every run, as in --userlock-baseline")
    parser.addini(
        "userlock_test_code",
        "folders, files and patterns of test code, whose puts are unchecked; empty: checked",
        type="linelist",
        default=None,
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "userlock_strict: test code is checked as well, and no put site is tolerated"
    )
    config.addinivalue_line("markers", "allow_unlocked(reason): no write is checked")
    listed = config.getini("userlock_test_code")
    # Not all folders of `testpaths` are test code: one may contain the application.
    usual = [*_USUAL, *(path for path in config.getini("testpaths") if Path(path).name in _USUAL)]
    test_code = TestCode(config.rootpath, usual if listed is None else listed)
    run = _baseline_run(config, test_code)
    config.add_cleanup(REPORTS.reset)
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setattr(REPORTS, "is_test_code", None if listed == [] else test_code)
    patch.setattr(REPORTS, "tolerates", None if run is None else run.tolerates)
    config.pluginmanager.register(test_code)
    if run is not None:
        config.pluginmanager.register(run, _RUN)
        LISTENERS.add(run.listen)
        config.add_cleanup(lambda: LISTENERS.remove(run.listen))


def _baseline_run(config: pytest.Config, test_code: TestCode) -> BaselineRun | None:
    here = config.invocation_params.dir
    writing: bool = config.getoption("userlock_baseline_write")
    report: str | None = config.getoption("userlock_report")
    option: str | None = config.getoption("userlock_baseline")
    named: str = config.getini("userlock_baseline")
    path = None
    if option:
        path = here / option
    elif option is None and named:
        path = config.rootpath / named
    elif writing:
        path = config.rootpath / DEFAULT_NAME
    if path is None and not report:
        return None
    report_path = here / report if report else None
    for each in filter(None, (path, report_path)):
        if each.is_dir() or not each.parent.is_dir():
            why = "it is a folder" if each.is_dir() else "there is no such folder"
            raise pytest.UsageError(f"{each} cannot be written: {why}")
    try:
        baseline = Baseline() if path is None else Baseline.read(path, missing_ok=writing)
    except BaselineError as error:
        raise pytest.UsageError(str(error)) from error
    return BaselineRun(config, test_code, baseline, path, writing, report_path)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    REPORTS.reset()
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("userlock_strict") is not None:
            patch.setattr(REPORTS, "is_test_code", None)
            run = item.config.pluginmanager.get_plugin(_RUN)
            if run is not None:
                patch.setattr(run, "active", False)
        if item.get_closest_marker("allow_unlocked") is not None:
            patch.setattr(REPORTS, "checks", False)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hide frames of this library and of ndb while pytest renders a traceback.

    pytest looks for a global variable of each frame. `pytest --full-trace` shows all frames.
    """
    # Of a `TestCase`, pytest learns of the error later in this hook.
    is_case = isinstance(item, pytest.Function) and issubclass(item.cls or object, TestCase)
    with pytest.MonkeyPatch.context() as patch:
        if call.excinfo is not None or is_case:
            for name, module in list(sys.modules.items()):
                hidden = name.startswith(_HIDDEN) and not name.startswith(_SHOWN)
                if hidden and isinstance(module, ModuleType):
                    patch.setitem(vars(module), "__tracebackhide__", _is_our_error)
        return (yield)


def _is_our_error(excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
    """Return whether an error is one of the library's. Other errors may be its bugs."""
    return isinstance(excinfo.value, UserLockError)
