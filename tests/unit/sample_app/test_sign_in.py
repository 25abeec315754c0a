"""Test signing in and out, and forms of other sites."""

from __future__ import annotations

from tests.unit.sample_app.conftest import Site


def test_the_cookie_is_signed_and_kept_from_scripts(site: Site) -> None:
    cookie = site.client.post("/sign-in", data={"learner": "ada"}).headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    name, _, value = cookie.split(";")[0].partition("=")
    stranger = site.app.test_client()
    # Not the last character: not all of its bits count.
    stranger.set_cookie(name, f"{value[:-2]}{'A' if value[-2] != 'A' else 'B'}{value[-1]}")
    assert "Who is learning today?" in stranger.get("/").text


#: Headers of a form, and whether it is from the site.
SENT: list[tuple[dict[str, str], bool]] = [
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
    ({"Origin": "http://localhost@elsewhere.example"}, False),
    ({"Origin": "http://["}, False),
    ({"Origin": "http://localhost:99999"}, False),
    ({"Origin": ""}, False),
    ({"Referer": "http://elsewhere.example/"}, False),
    ({"Referer": "http://localhost/projects"}, True),
]


def test_a_form_comes_from_here(site: Site) -> None:
    ada = site.sign_in()
    for number, (headers, taken) in enumerate(SENT):
        answer = ada.post("/projects", data={"title": f"no. {number}"}, headers=headers)
        assert answer.status_code == (303 if taken else 403), headers
        assert taken or "sent from another site" in answer.text
        assert (f"no. {number}" in ada.get("/projects").text) is taken
    finish = "/api/learners/ada/exercises/primes/finish"
    assert ada.post(finish, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert site.learner()["points"] == 0
