"""Test the paths that prove batch work: the same in all integrations, whatever the client sends."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userlock.contrib.request_scope import BatchPaths, path_of

#: PATH_INFO as text, decoded once as servers do, and whether it proves batch work.
TABLE: list[tuple[str, bool]] = [
    ("/tasks/report", True),
    ("/tasks/report/", True),
    ("/tasks/", True),
    ("/tasks/café", True),
    ("/tasks/a b", True),
    ("/tasks/a..b/.well-known/...", True),
    ("/cron", True),
    ("/cron/", True),
    ("/cron/nightly", True),
    # Other paths.
    ("", False),
    ("/", False),
    ("/tasks", False),
    ("/tasksreport", False),
    ("/cronology", False),
    ("/answers/tasks/report", False),
    ("tasks/report", False),
    # Which some routers would take for another path.
    ("//tasks/report", False),
    ("///tasks/report", False),
    ("/tasks//report", False),
    ("/tasks/report//", False),
    ("/tasks//", False),
    ("/tasks/../answers", False),
    ("/tasks/..", False),
    ("/tasks/./report", False),
    ("/tasks/.", False),
    ("/./tasks/report", False),
    ("/answers/../tasks/report", False),
    ("/tasks/%2e%2e/answers", False),
    ("/tasks/%2E%2e/answers", False),
    ("/tasks%2freport", False),
    ("/tasks/..%2fanswers", False),
    ("/%74asks/report", False),
    ("/tasks/100%", False),
    ("/tasks\\report", False),
    ("/tasks/..\\answers", False),
    ("\\tasks\\report", False),
    # Case.
    ("/Tasks/report", False),
    ("/TASKS/report", False),
    # What a line or a terminal ends with.
    ("/tasks/report\n", False),
    ("/tasks/\n", False),
    ("/cron\n", False),
    ("/tasks/report\r\nX-AppEngine-Cron: true", False),
    ("/tasks/report\0", False),
    ("\n/tasks/report", False),
    (" /tasks/report", False),
    ("/tasks/\u2028report", False),
    # Bytes that are no UTF-8.
    ("/tasks/\udcff", False),
]


def test_each_path_of_the_table() -> None:
    paths = BatchPaths(["/tasks/", "/cron"])
    wrong = set()
    for path, batch in TABLE:
        raw = path.encode("utf-8", "surrogateescape").decode("latin-1")
        if (path_of({"PATH_INFO": raw}) in paths) != batch:
            wrong.add(path)
    assert wrong == set()


segments = st.sampled_from(
    [
        *("tasks", "Tasks", "cron", "report", "answers", "", ".", "..", "%2e", "%2e%2e"),
        *("a%2fb", "\n", "ta\\sks", "tasks\n", "tasks\0", "é", "..;"),
    ]
)
paths = (
    st.lists(segments, max_size=5).map("/".join).flatmap(lambda p: st.sampled_from([p, "/" + p]))
)


@given(paths)
def test_no_reader_of_a_path_finds_another_one_in_it(path: str) -> None:
    """Whatever a router, proxy or app normalises: a path of batch work stays one."""
    if path not in BatchPaths(["/tasks/"]):
        return
    segments = path.split("/")[1:]
    assert segments[0] == "tasks"
    assert "/" + "/".join(resolved(segments)) == path
    for reading in (path.strip(), path.replace("\\", "/"), path.split("%")[0]):
        assert reading == path


def resolved(segments: list[str]) -> list[str]:
    """Return segments without dots and without empty ones, but for the last."""
    found: list[str] = []
    for number, each in enumerate(segments):
        if each == "..":
            with contextlib.suppress(IndexError):
                found.pop()
        elif each not in ("", ".") or (each == "" and number == len(segments) - 1):
            found.append(each)
    return found


def test_a_prefix_check_alone_would_take_other_paths_for_batch_work() -> None:
    """The negative control of the table."""
    fooled = [path for path, batch in TABLE if path.startswith("/tasks/") and not batch]
    assert len(fooled) > 10


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


def test_anything_but_a_list_of_paths_is_refused_at_once() -> None:
    for wrong in ("/tasks/", [b"/tasks/"], [None]):
        with pytest.raises(TypeError, match="batch_prefixes must be a list of paths"):
            BatchPaths(wrong)  # type: ignore[arg-type]


def test_a_path_is_text() -> None:
    assert path_of({"PATH_INFO": "/caf\xc3\xa9"}) == "/café"
    assert path_of({"PATH_INFO": "/\xff"}) == "/\ufffd"
    assert path_of({"PATH_INFO": "/\u20ac"}) == "/?"
    assert path_of({}) == path_of({"PATH_INFO": ""}) == "/"
