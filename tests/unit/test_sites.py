"""Test the names of put sites: stable when lines move, and the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from userlock.callsite import CallSite
from userlock.errors import PutWithoutLock
from userlock.sites import Project, Site, facts_of


def at(file: str, function: str, line: int = 1) -> CallSite:
    return CallSite(file, line, function)


def violation(put_at: object, read_at: object | None = None) -> PutWithoutLock:
    return PutWithoutLock(key=None, kind="Learner", lock_id="ann", read_at=read_at, put_at=put_at)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    for name in ("main.py", "app/points.py", "src/shop/cart.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return Project(tmp_path)


def site(project: Project, put_at: object, read_at: object | None = None) -> Site:
    return project.site_of(facts_of(violation(put_at, read_at)))


def put_in(project: Project, file: str, function: str = "finish") -> str:
    return site(project, at(file, function)).put


class TestNames:
    def test_the_place_the_mistake_and_the_kind(self, project: Project) -> None:
        root = project.root
        found = site(project, at(f"{root}/app/points.py", "finish"), at(f"{root}/main.py", "load"))
        assert str(found) == "app/points.py::finish PutWithoutLock Learner"

    def test_a_line_that_moves_changes_nothing(self, project: Project) -> None:
        one, other = at("app/points.py", "finish", 10), at("app/points.py", "finish", 99)
        assert site(project, one, one) == site(project, other, other)

    def test_another_function_mistake_or_kind_is_another_site(self, project: Project) -> None:
        """The negative control."""
        finish, start = at("app/points.py", "finish"), at("app/points.py", "start")
        facts = facts_of(violation(finish))
        sites = {
            site(project, finish),
            site(project, start),
            project.site_of({**facts, "violation": "PutAfterRelease"}),
            project.site_of({**facts, "kind": "Note"}),
        }
        assert len(sites) == 4

    def test_another_read_is_the_same_site(self, project: Project) -> None:
        finish, start = at("app/points.py", "finish"), at("app/points.py", "start")
        assert site(project, finish, start) == site(project, finish, None)

    @pytest.mark.parametrize(
        ("function", "named"),
        [
            ("Board.finish", "Board.finish"),
            ("finish.<locals>.once", "finish.<locals>.once"),
            ("finish.<locals>.<lambda>", "finish.<locals>.<lambda>"),
            # Inlined from Python 3.12 on.
            ("finish.<locals>.<listcomp>", "finish"),
            ("finish.<locals>.<listcomp>.<setcomp>", "finish"),
            ("<dictcomp>", "<module>"),
            ("<module>", "<module>"),
        ],
    )
    def test_functions(self, project: Project, function: str, named: str) -> None:
        assert put_in(project, "app/points.py", function) == f"app/points.py::{named}"

    def test_an_unknown_call_site(self, project: Project) -> None:
        assert site(project, None).put == "?::?"


class TestFiles:
    def test_in_the_project(self, project: Project) -> None:
        assert put_in(project, f"{project.root}/app/new.py") == "app/new.py::finish"

    @pytest.mark.parametrize(
        ("deployed", "named"),
        [
            ("/srv/app/points.py", "app/points.py"),
            ("/workspace/main.py", "main.py"),
            ("/usr/lib/python3.12/site-packages/shop/cart.py", "src/shop/cart.py"),
            ("/srv/shop/cart.py", "src/shop/cart.py"),
        ],
    )
    def test_the_project_as_it_was_deployed(
        self, project: Project, deployed: str, named: str
    ) -> None:
        assert put_in(project, deployed) == f"{named}::finish"

    def test_a_library_in_the_projects_own_environment(self, project: Project) -> None:
        file = project.root / ".venv/lib/python3.12/site-packages/flask_session/ndb.py"
        file.parent.mkdir(parents=True)
        file.write_text("")
        assert put_in(project, str(file)) == "site-packages/flask_session/ndb.py::finish"

    def test_elsewhere(self, project: Project) -> None:
        assert put_in(project, "/opt/tool/run.py") == "/opt/tool/run.py::finish"
        assert put_in(project, "<stdin>") == "<stdin>::finish"


class TestLines:
    @pytest.mark.parametrize(
        "one",
        [
            Site("app/points.py::finish", "PutWithoutLock", "Learner"),
            Site("app/points.py::f.<locals>.<lambda>", "CreatedWithoutLock", "Learner"),
            Site("a folder/#1 100%.py::<module>", "PutWithoutLock", "My\tKind"),
            Site("app/grüße.py::größe", "PutWithoutLock", "Größe"),
            Site("app/\udce4.py::f", "PutWithoutLock", "漢字\u2028"),
        ],
    )
    def test_there_and_back(self, one: Site) -> None:
        line = str(one)
        assert len(line.split()) == 3
        assert len(line.splitlines()) == 1
        assert "#" not in line
        assert Site.parse(line) == one

    @pytest.mark.parametrize("line", ["", "app/x.py::f", "a b c", "a::b c d e", "<<<<<<< HEAD x"])
    def test_a_line_without_a_site(self, line: str) -> None:
        with pytest.raises(ValueError, match="names no put site"):
            Site.parse(line)

    @pytest.mark.parametrize(
        "facts",
        [
            None,
            "text",
            {},
            {"violation": 1, "kind": "Learner", "put": None},
            {"violation": "PutWithoutLock", "kind": "", "put": None},
            {"violation": "PutWithoutLock", "kind": "Learner", "put": "app/x.py"},
            {"violation": "PutWithoutLock", "kind": "Learner", "put": {"file": "x", "function": 1}},
        ],
    )
    def test_wrong_facts(self, project: Project, facts: Any) -> None:
        with pytest.raises(ValueError, match=r"no (facts|place)"):
            project.site_of(facts)
