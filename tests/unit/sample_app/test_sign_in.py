"""Test signing in and out, and forms of other sites."""

from __future__ import annotations

import pytest

from tests.unit.sample_app.conftest import Site


def test_in_by_choosing_a_name_and_out(site: Site) -> None:
    page = site.client.post("/sign-in", data={"learner": "ada"}, follow_redirects=True)
    assert page.request.path == "/"
    assert '<span class="who-is-in">Ada Lindqvist</span>' in page.text
    page = site.client.post("/sign-out", follow_redirects=True)
    assert "Who is learning today?" in page.text
    assert "Sign out" not in page.text


def test_the_cookie_is_signed_and_kept_from_scripts(site: Site) -> None:
    cookie = site.client.post("/sign-in", data={"learner": "ada"}).headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    name, _, value = cookie.split(";")[0].partition("=")
    stranger = site.app.test_client()
    # Not the last character: not all of its bits count.
    stranger.set_cookie(name, f"{value[:-2]}{'A' if value[-2] != 'A' else 'B'}{value[-1]}")
    assert "Who is learning today?" in stranger.get("/").text


@pytest.mark.parametrize("form", [{"learner": "nobody"}, {"coach": "coach:nobody"}])
def test_nobody_is_not_to_be_had(site: Site, form: dict[str, str]) -> None:
    assert site.client.post("/sign-in", data=form).status_code == 404


@pytest.mark.parametrize("form", [{}, {"learner": "NO"}])
def test_a_name_that_is_none_leads_back(site: Site, form: dict[str, str]) -> None:
    page = site.client.post("/sign-in", data=form, follow_redirects=True)
    assert page.request.path == "/"
    assert "small letters" in page.text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/exercises/primes"),
        ("POST", "/exercises/primes"),
        ("GET", "/videos/tides"),
        ("POST", "/videos/tides"),
        ("POST", "/certificates"),
        ("GET", "/payments"),
        ("POST", "/payments"),
        ("POST", "/payments/settings"),
        ("GET", "/projects"),
        ("POST", "/projects"),
        ("GET", "/projects/7"),
        ("POST", "/projects/7/delete"),
        ("GET", "/coach"),
        ("POST", "/coach"),
    ],
)
def test_signing_in_is_required(site: Site, method: str, path: str) -> None:
    form = {"title": "x", "course": "sky", "state": "active", "part": "0"}
    page = site.client.open(path, method=method, data=form, follow_redirects=True)
    assert page.request.path == "/"
    assert page.text.count("first: this action needs one") == 1


def test_a_deleted_learner_is_signed_out(site: Site, datastore: object) -> None:
    ada = site.sign_in()
    getattr(datastore, "reset")()  # noqa: B009
    assert "Who is learning today?" in ada.get("/").text


@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ({}, True),  # no browser
        ({"Sec-Fetch-Site": "same-origin", "Origin": "null"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Origin": "http://localhost"}, True),
        ({"Origin": "http://localhost:81"}, False),
        ({"Origin": "http://elsewhere.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "https://localhost"}, False),
        ({"Origin": "http://localhost:80"}, True),
        ({"Origin": "http://localhost@elsewhere.example"}, False),
        ({"Origin": "http://["}, False),
        ({"Origin": "http://localhost:99999"}, False),
        ({"Origin": ""}, False),
        ({"Referer": "http://elsewhere.example/"}, False),
        ({"Referer": "http://localhost/projects"}, True),
    ],
)
@pytest.mark.parametrize("path", ["/projects", "/api/learners/ada/exercises/primes/finish"])
def test_a_form_comes_from_here(
    site: Site, headers: dict[str, str], taken: bool, path: str
) -> None:
    ada = site.sign_in()
    answer = ada.post(path, data={"title": "mine"}, headers=headers)
    if taken:
        assert answer.status_code in {200, 303}
    else:
        assert answer.status_code == 403
        assert "sent from another site" in answer.text
    done = site.learner()["points"] == 15 or "mine" in ada.get("/projects").text
    assert done is taken


def test_links_from_elsewhere_are_welcome(site: Site) -> None:
    answer = site.client.get("/", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
