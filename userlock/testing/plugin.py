"""The pytest plugin: fixtures for tests of applications, and the baseline of put sites.

    --userlock-baseline=FILE     let the put sites in FILE pass, and fail the tests that find others
    --userlock-baseline-write    write those that are found to FILE instead
    --userlock-report=FILE       write a report of them, for `userlock baseline`

In the configuration, `userlock_baseline` names the file for every run, and
`userlock_test_code` says where test code is (see `userlock.testing.test_code`);
empty, it has test code checked like any other. Two markers:

    @pytest.mark.userlock_strict           for tests that are about locks: test code is checked
                                           as well, and no put site is tolerated
    @pytest.mark.allow_unlocked("reason")  no write is checked in this test

Each test begins without what others have seen: what is logged once is logged
once a test.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from userlock.baseline import DEFAULT_NAME, Baseline, BaselineError
from userlock.errors import WriteViolation
from userlock.events import LISTENERS
from userlock.reports import REPORTS
from userlock.sites import Project
from userlock.testing.baseline_run import BaselineRun
from userlock.testing.fixtures import (
    allow_unlocked,
    held_lock,
    userlock_clock,
    userlock_faults,
    userlock_service,
)
from userlock.testing.known_sites import KnownSites
from userlock.testing.test_code import USUAL, TestCode

__all__ = ["allow_unlocked", "held_lock", "userlock_clock", "userlock_faults", "userlock_service"]

pytest.register_assert_rewrite("userlock.testing.contract")


class _Setting(NamedTuple):
    """The changes of a test run to this process, and the state before."""

    test_code: TestCode
    sites: KnownSites | None
    before: tuple[Callable[[str], bool] | None, Callable[[WriteViolation], bool] | None]


_SETTING = pytest.StashKey[_Setting]()


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
        help=f"write the put sites that are found to the baseline (by default {DEFAULT_NAME})",
    )
    group.addoption(
        "--userlock-report",
        metavar="FILE",
        help="write a report of the put sites that are found, for `userlock baseline`",
    )
    parser.addini("userlock_baseline", "the baseline for every run, as in --userlock-baseline")
    parser.addini(
        "userlock_test_code",
        "folders, files and patterns of test code, whose puts are not checked; empty: they are",
        type="linelist",
        default=None,
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "userlock_strict: test code is checked as well, and no put site is tolerated"
    )
    config.addinivalue_line("markers", "allow_unlocked(reason): no write is checked")
    listed = config.getini("userlock_test_code")
    test_code = TestCode(config.rootpath, _usual(config) if listed is None else listed)
    sites = _watch_sites(config, test_code)
    config.stash[_SETTING] = _Setting(test_code, sites, (REPORTS.is_test_code, REPORTS.tolerates))
    # An empty list means that it is to be checked.
    REPORTS.is_test_code = None if listed == [] else test_code
    REPORTS.tolerates = None
    if sites is not None:
        REPORTS.tolerates = sites.tolerates
        LISTENERS.add(sites.listen)


def pytest_unconfigure(config: pytest.Config) -> None:
    setting = config.stash.get(_SETTING, None)
    if setting is None:  # it was not configured to the end
        return
    REPORTS.is_test_code, REPORTS.tolerates = setting.before
    if setting.sites is not None:
        LISTENERS.remove(setting.sites.listen)
    REPORTS.reset()


def _usual(config: pytest.Config) -> list[str]:
    """Return the default places of test code. Not every folder of `testpaths`: there may be
    an application in it."""
    return [*USUAL, *(path for path in config.getini("testpaths") if Path(path).name in USUAL)]


def _watch_sites(config: pytest.Config, test_code: TestCode) -> KnownSites | None:
    """Watch the put sites, if that is asked for; return the watcher."""
    path = _baseline_path(config)
    writing: bool = config.getoption("userlock_baseline_write")
    report = config.getoption("userlock_report")
    if path is None and writing:
        path = config.rootpath / DEFAULT_NAME
    report = config.invocation_params.dir / report if report else None
    if path is None and report is None:
        return None
    for each in (path, report):
        if each is not None and not each.parent.is_dir():
            raise pytest.UsageError(f"{each} cannot be written: there is no such folder")
    baseline = Baseline() if path is None else _read(path, needed=not writing)
    sites = KnownSites(
        Project(config.rootpath), test_code, baseline, recording=path is None or writing
    )
    run = BaselineRun(config, sites, path, writing=writing, report=report)
    config.pluginmanager.register(sites, "userlock-known-sites")
    config.pluginmanager.register(run, "userlock-baseline-run")
    return sites


def _baseline_path(config: pytest.Config) -> Path | None:
    option: str | None = config.getoption("userlock_baseline")
    if option is not None:
        return config.invocation_params.dir / option if option else None
    name: str = config.getini("userlock_baseline")
    return config.rootpath / name if name else None


def _read(path: Path, *, needed: bool) -> Baseline:
    try:
        return Baseline.read(path)
    except FileNotFoundError:
        if needed:
            raise pytest.UsageError(
                f"there is no {path}: make it with --userlock-baseline-write"
            ) from None
        return Baseline()
    except BaselineError as error:
        raise pytest.UsageError(str(error)) from error


# --- tests --------------------------------------------------------------------------------------


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function):
        item.config.stash[_SETTING].test_code.add_module(str(item.path))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    REPORTS.reset()
    with contextlib.ExitStack() as stack:
        if item.get_closest_marker("userlock_strict") is not None:
            stack.enter_context(_strict(item.config.stash[_SETTING].sites))
        if item.get_closest_marker("allow_unlocked") is not None:
            REPORTS.checks = False
            stack.callback(setattr, REPORTS, "checks", True)
        return (yield)


@contextlib.contextmanager
def _strict(sites: KnownSites | None) -> Iterator[None]:
    """Nothing is exempt, nothing is known."""
    before = REPORTS.is_test_code
    REPORTS.is_test_code = None
    if sites is not None:
        sites.active = False
    try:
        yield
    finally:
        REPORTS.is_test_code = before
        if sites is not None:
            sites.active = True
