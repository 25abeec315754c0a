"""A test run and the put sites that are known: what is new fails the test that found it.

A violation at a known site is let pass, as `enforcement="log"` does. One at
another site is raised as ever. Where the application swallows it, or only
logs violations itself, the test fails all the same, at its end; unless the
test caught it itself, as one that expects it does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from types import TracebackType
from typing import Any

import pytest

from userlock.baseline import Baseline
from userlock.errors import WriteViolation
from userlock.events import Event, Violation
from userlock.sites import Project, Site, facts_of
from userlock.testing.test_code import TestCode

#: Where an error ends up that a test expects by a call: `pytest.raises(error, function)`.
_TEST_TOOLS = ("/_pytest/", "/unittest/")


@dataclasses.dataclass
class Seen:
    """A put site in this run.

    Attributes:
        facts: of its first violation, with names from the project's folder.
        times: how many there were.
        test: which test was the first.
    """

    facts: dict[str, Any]
    times: int
    test: str


class KnownSites:
    """Plugin for one test run.

    Args:
        project: names files.
        is_test_code: tells test code.
        baseline: what is known.
        recording: everything is tolerated, to be written down.

    Attributes:
        seen: the put sites of this run.
        active: whether sites are watched now. Not in tests that are about violations.
    """

    def __init__(
        self, project: Project, is_test_code: TestCode, baseline: Baseline, *, recording: bool
    ) -> None:
        self.baseline = baseline
        self.seen: dict[Site, Seen] = {}
        self.active = True
        self._project = project
        self._is_test_code = is_test_code
        self._recording = recording
        self._test = ""
        #: New ones of the phase that is running, in their order.
        self._new: list[tuple[Site, WriteViolation]] = []

    # --- violations -------------------------------------------------------------------------

    def tolerates(self, violation: WriteViolation) -> bool:
        """Return whether a violation is let pass."""
        site, _ = self._site_of(violation)
        return self.active and site.is_mistake and (self._recording or site in self.baseline)

    def listen(self, event: Event) -> None:
        """Take down where a violation happened."""
        if not (self.active and isinstance(event, Violation)):
            return
        site, facts = self._site_of(event.error)
        if not site.is_mistake:
            return
        if self._recording or site in self.baseline:
            self.note(site, facts, 1, self._test)
        else:
            self._new.append((site, event.error))

    def note(self, site: Site, facts: dict[str, Any], times: int, test: str) -> None:
        """Count a put site."""
        self.seen.setdefault(site, Seen(facts, 0, test)).times += times

    def _site_of(self, violation: WriteViolation) -> tuple[Site, dict[str, Any]]:
        facts = facts_of(violation)
        site = self._project.site_of(facts)
        for place in (facts["put"], facts["read"]):
            if place is not None:
                place["file"] = self._project.name_of(place["file"])
        return site, facts

    # --- tests ------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._test = item.nodeid
        self._new.clear()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        yield from self._phase()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        yield from self._phase()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        yield from self._phase()

    def _phase(self) -> Generator[None, None, None]:
        try:
            yield
        except BaseException:
            self._settle()
            raise
        # What the test has caught itself, it was about.
        self._new = [new for new in self._new if not self._caught_by_test(new[1].__traceback__)]
        unnoticed = self._settle()
        if unnoticed:
            pytest.fail(
                "This test passes, but new put sites are not covered by their lock:\n\n"
                + "\n\n".join(f"{site}\n{error}" for site, error in unnoticed.items()),
                pytrace=False,
            )

    def _settle(self) -> dict[Site, WriteViolation]:
        """Take down what is new. Each site with its first violation."""
        new, self._new = self._new, []
        for site, error in new:
            self.note(site, self._site_of(error)[1], 1, self._test)
        return dict(reversed(new))

    def _caught_by_test(self, traceback: TracebackType | None) -> bool:
        """Return whether an error reached test code: its traceback begins where it ended."""
        if traceback is None:
            return False
        file = traceback.tb_frame.f_code.co_filename
        return self._is_test_code(file) or any(tool in file for tool in _TEST_TOOLS)
