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
    page = client.post("/projects", data={"title": title}, follow_redirects=True).text
    found = re.search(rf'<a href="(/projects/\d+)">{title}</a>', page)
    assert found, page
    return found[1]


def test_a_form_that_is_sent_twice_makes_one_project(ada: FlaskClient) -> None:
    create(ada, "A sundial")
    page = ada.post("/projects", data={"title": " A  sundial "}, follow_redirects=True)
    assert "There already is a project “A sundial”." in page.text
    assert page.text.count('value="archived"') == 1


def test_others_projects_are_not_to_be_had(site: Site, ada: FlaskClient) -> None:
    path = create(ada, "A sundial")
    site.client.post("/api/learners", json={"name": "Bruno"})
    bruno = site.sign_in("bruno")
    assert bruno.get(path).status_code == 404
    assert bruno.post(path, data={"state": "archived"}).status_code == 404
    bruno.post(f"{path}/delete")
    assert "Active" in ada.get(path).text
