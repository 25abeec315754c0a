"""Test the paths that prove batch work: the same in all integrations, whatever the client sends."""

from __future__ import annotations

import pytest

from userlock.contrib.request_scope import BatchPaths, path_of

#: PATH_INFO as text, decoded once as servers do.
BATCH = [
    *("/tasks/report", "/tasks/report/", "/tasks/", "/tasks/café", "/tasks/a b"),
    *("/tasks/a..b/.well-known/...", "/cron", "/cron/", "/cron/nightly"),
]
OTHERS = [
    *("", "/", "/tasks", "/tasksreport", "/cronology", "/answers/tasks/report", "tasks/report"),
    # Which some routers would take for another path.
    *("//tasks/report", "///tasks/report", "/tasks//report", "/tasks/report//", "/tasks//"),
    *("/tasks/../answers", "/tasks/..", "/tasks/./report", "/tasks/.", "/./tasks/report"),
    *("/answers/../tasks/report", "/tasks/%2e%2e/answers", "/tasks/%2E%2e/answers"),
    *("/tasks%2freport", "/tasks/..%2fanswers", "/%74asks/report", "/tasks/100%"),
    *("/tasks\\report", "/tasks/..\\answers", "\\tasks\\report"),
    # Case.
    *("/Tasks/report", "/TASKS/report"),
    # What a line or a terminal ends with.
    *("/tasks/report\n", "/tasks/\n", "/cron\n", "/tasks/report\r\nX-AppEngine-Cron: true"),
    *("/tasks/report\0", "\n/tasks/report", " /tasks/report", "/tasks/\u2028report"),
    # Bytes that are no UTF-8.
    "/tasks/\udcff",
]


@pytest.mark.parametrize("path", [*BATCH, *OTHERS], ids=ascii)
def test_each_path(path: str) -> None:
    raw = path.encode("utf-8", "surrogateescape").decode("latin-1")
    assert (path_of({"PATH_INFO": raw}) in BatchPaths(["/tasks/", "/cron"])) is (path in BATCH)


def test_a_prefix_check_alone_would_take_other_paths_for_batch_work() -> None:
    """The negative control."""
    assert len([path for path in OTHERS if path.startswith("/tasks/")]) > 10


@pytest.mark.parametrize(
    "prefix", ["", "tasks/", "//tasks/", "/tasks//", "/a/../b", "/a%2f", "/a\n"]
)
def test_a_prefix_that_no_path_has_is_refused_at_once(prefix: str) -> None:
    with pytest.raises(ValueError, match="no path begins with the batch prefix"):
        BatchPaths([prefix])


def test_a_service_whose_paths_are_all_batch_work() -> None:
    everything = BatchPaths(["/"])
    assert "/" in everything
    assert "/report" in everything
    assert "//report" not in everything


def test_a_path_is_text() -> None:
    assert path_of({"PATH_INFO": "/caf\xc3\xa9"}) == "/café"
    assert path_of({"PATH_INFO": "/\xff"}) == "/\ufffd"
    assert path_of({"PATH_INFO": "/\u20ac"}) == "/?"
    assert path_of({}) == path_of({"PATH_INFO": ""}) == "/"
