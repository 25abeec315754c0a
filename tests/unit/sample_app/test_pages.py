"""The pages, as a browser without JavaScript uses them."""

from __future__ import annotations

import pytest

import emulator
from tests.unit.sample_app.conftest import Site


def test_home_lists_the_learners(site: Site) -> None:
    page = site.client.get("/")
    assert page.status_code == 200
    assert "Ada Lindqvist" in page.text
    assert 'href="/learners/ada"' in page.text


def test_home_goes_on_after_a_page_full(site: Site) -> None:
    for number in range(30):
        site.client.post("/api/learners", json={"name": f"Learner {number:02}"})
    first = site.client.get("/")
    assert first.text.count('class="card person"') == 24
    href = first.text.split('href="/?after=')[1].split('"')[0]
    second = site.client.get(f"/?after={href}")
    assert second.status_code == 200, second.text
    assert second.text.count('class="card person"') == 7
    assert "Learner 29" in second.text
    assert "/?after=" not in second.text


@pytest.mark.parametrize("after", ["nonsense", "%F0%9F%98%80", "AAAA", "=", "CgA"])
def test_a_made_up_place_in_the_list_is_no_server_error(site: Site, after: str) -> None:
    assert site.client.get(f"/?after={after}").status_code in {200, 400, 404}


def test_adding_a_learner_leads_to_the_new_page(site: Site) -> None:
    page = site.client.post("/learners", data={"name": "Grace Hopper"}, follow_redirects=True)
    assert page.request.path == "/learners/grace-hopper"
    assert "Welcome, Grace Hopper." in page.text
    assert "No exercise finished yet." in page.text


def test_an_exercise_is_post_redirect_get(site: Site) -> None:
    answer = site.client.post("/learners/ada/exercises", data={"exercise": "primes"})
    assert answer.status_code == 303
    assert answer.location == "/learners/ada"
    page = site.client.get(answer.location)
    assert "“Hunting for primes” finished: 15 points. The lock was free: " in page.text
    assert '<dd id="points">15</dd>' in page.text
    assert page.text.count("<time ") == 1
    assert "finished" not in site.client.get(answer.location).text, "said once"


def test_a_video_from_its_form(site: Site) -> None:
    page = site.client.post(
        "/learners/ada/videos", data={"video": "tides", "seconds": "240"}, follow_redirects=True
    )
    assert "Watched 240 s of “Why the sea goes out”: 8 points." in page.text


def test_what_is_refused_comes_back_to_the_form(site: Site) -> None:
    page = site.client.post(
        "/learners/ada/videos", data={"video": "tides", "seconds": "999"}, follow_redirects=True
    )
    assert page.request.path == "/learners/ada"
    assert 'class="flash problem"' in page.text
    assert "a whole number from 1 to 245" in page.text
    home = site.client.post("/learners", data={"name": "ada"}, follow_redirects=True)
    assert home.request.path == "/"
    assert "There already is a learner" in home.text


def test_a_certificate_from_its_button(site: Site) -> None:
    for _ in range(4):
        site.client.post("/learners/ada/exercises", data={"exercise": "primes"})
    before = site.client.get("/learners/ada").text
    assert before.count("Spend points") == 2
    page = site.client.post(
        "/learners/ada/certificates", data={"course": "numbers"}, follow_redirects=True
    )
    assert "Certificate “Everyday numbers” awarded for 60 points." in page.text
    assert '<span class="awarded">Awarded</span>' in page.text
    assert page.text.count("Spend points") == 1


def test_the_badge_job_from_its_button(site: Site) -> None:
    site.client.post("/learners/ada/exercises", data={"exercise": "primes"})
    page = site.client.post("/badge-job", follow_redirects=True)
    assert "new badges 1, learners 1," in page.text
    assert 'class="badge earned"' in site.client.get("/learners/ada").text


def test_names_are_escaped(site: Site) -> None:
    site.client.post("/api/learners", json={"id": "eve", "name": "<script>alert(1)</script>"})
    for path in ("/", "/learners/eve"):
        text = site.client.get(path).text
        assert "<script" not in text
        assert "&lt;script&gt;" in text


@pytest.mark.parametrize(
    ("path", "status"),
    [("/learners/nobody", 404), ("/learners/NO", 400), ("/nothing", 404), ("/learners", 405)],
)
def test_problems_are_pages(site: Site, path: str, status: int) -> None:
    page = site.client.get(path)
    assert page.status_code == status
    assert page.mimetype == "text/html"
    assert "Almanac" in page.text


def test_a_locked_learner_is_explained_to_people(site: Site) -> None:
    with site.somebody_else_holds("ada"):
        page = site.client.post("/learners/ada/exercises", data={"exercise": "primes"})
    assert page.status_code == 503
    assert page.headers["Retry-After"]
    assert "Somebody else is changing this learner right now" in page.text


@pytest.mark.parametrize(
    ("path", "form", "points"),
    [
        ("exercises", {"exercise": "primes"}, 75),  # StaleWriteError.may_have_landed
        ("certificates", {"course": "numbers"}, 0),  # CommitInDoubt
    ],
)
def test_who_cannot_be_told_what_became_of_it_is_not_told_to_try_again(
    site: Site, datastore: emulator.Emulator, path: str, form: dict[str, str], points: int
) -> None:
    for _ in range(4):
        site.client.post("/learners/ada/exercises", data={"exercise": "primes"})
    datastore.faults.drop_reply(kind="Learner")
    page = site.client.post(f"/learners/ada/{path}", data=form)
    assert page.status_code == 500
    assert "Look at the learner before you do it again" in page.text
    assert "Retry-After" not in page.headers
    assert site.learner()["points"] == points, "it has landed"


def test_nothing_is_loaded_from_elsewhere(site: Site) -> None:
    with site.client.get("/static/almanac.css") as answer:
        css = answer.get_data(as_text=True)
    for text in (site.client.get("/").text, site.client.get("/learners/ada").text, css):
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text
