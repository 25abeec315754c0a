"""Test projects, as a browser without JavaScript uses them."""

from __future__ import annotations

import re

import pytest
from flask.testing import FlaskClient

from tests.unit.sample_app.conftest import Site


@pytest.fixture
def ada(site: Site) -> FlaskClient:
    return site.sign_in()


def create(client: FlaskClient, title: str) -> str:
    """Create a project. Return the path of its page."""
    page = client.post("/projects", data={"title": title}, follow_redirects=True).text
    found = re.search(rf'<a href="(/projects/\d+)">{title}</a>', page)
    assert found, page
    return found[1]


def test_a_project_from_its_beginning_to_its_end(ada: FlaskClient) -> None:
    path = create(ada, "A sundial")
    assert "A sundial" in ada.get("/").text
    assert "Active" in ada.get(path).text
    page = ada.post(path, data={"state": "archived"}, follow_redirects=True)
    assert "“A sundial” is archived." in page.text
    assert "Archived" in ada.get(path).text
    assert "A sundial" not in ada.get("/").text
    page = ada.post(path, data={"state": "active"}, follow_redirects=True)
    assert "“A sundial” is active again." in page.text
    asked = ada.get(f"{path}/delete")
    assert "Delete “A sundial”?" in asked.text
    assert ada.get(path).status_code == 200, "asking deletes nothing"
    page = ada.post(f"{path}/delete", follow_redirects=True)
    assert "“A sundial” is deleted." in page.text
    assert "its screens follow" in page.text
    assert ada.get(path).status_code == 404


def test_a_form_that_is_sent_twice_makes_one_project(ada: FlaskClient) -> None:
    create(ada, "A sundial")
    page = ada.post("/projects", data={"title": " A  sundial "}, follow_redirects=True)
    assert "There already is a project “A sundial”." in page.text
    assert page.text.count('value="archived"') == 1


def test_those_over_the_plan_are_flagged_and_an_upgrade_frees_them(
    site: Site, ada: FlaskClient
) -> None:
    paths = [create(ada, title) for title in ("one", "two", "three", "four")]
    assert "read only" not in ada.get("/projects").text
    site.run_jobs()
    page = ada.get("/projects").text
    assert page.count("over your plan: read only") == 1
    assert "1 project is over that" in page
    assert "Over your plan: read only." in ada.get(paths[3]).text
    page = ada.post("/plan", data={"plan": "plus"}, follow_redirects=True).text
    assert "You have the plan “plus” now." in page
    site.run_jobs()
    assert "read only" not in ada.get("/projects").text
    ada.post("/plan", data={"plan": "free"})
    site.run_jobs()
    assert "read only" in ada.get(paths[3]).text
    ada.post(paths[0], data={"state": "archived"})
    site.run_jobs()
    assert "read only" not in ada.get(paths[3]).text


def test_others_projects_are_not_to_be_had(site: Site, ada: FlaskClient) -> None:
    path = create(ada, "A sundial")
    site.client.post("/api/learners", json={"name": "Bruno"})
    bruno = site.sign_in("bruno")
    assert bruno.get(path).status_code == 404
    assert bruno.post(path, data={"state": "archived"}).status_code == 404
    bruno.post(f"{path}/delete")
    assert "Active" in ada.get(path).text
