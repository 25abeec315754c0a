"""The reset of objects in a forked child."""

from __future__ import annotations

import logging

import pytest

from tests.forks import in_child
from userlock.fork import reset_in_child


class Reset:
    """Notes its reset, or fails in it."""

    def __init__(self, *, fails: bool = False) -> None:
        self.done = False
        self._fails = fails
        reset_in_child(self.reset)

    def reset(self) -> None:
        if self._fails:
            raise OSError("no such file")
        self.done = True


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_object_that_fails_does_not_keep_the_others_from_being_reset(
    caplog: pytest.LogCaptureFixture,
) -> None:
    objects = [Reset(), Reset(fails=True), Reset()]
    with caplog.at_level(logging.CRITICAL, "userlock.fork"):
        assert in_child(lambda: [each.done for each in objects]) == [True, False, True]
    assert not any(each.done for each in objects)
