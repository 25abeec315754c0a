"""Test the pages, as a browser without JavaScript uses them."""

from __future__ import annotations

import pytest

import userlock_emulator
from sample_app.flows import new_key
from tests.unit.sample_app.conftest import Site

ALL_RIGHT = {"question-0": "2", "question-1": "1", "question-2": "1"}


def test_the_front_page_lists_the_learners(site: Site) -> None:
    page = site.client.get("/")
    assert page.status_code == 200
    assert "Who is learning today?" in page.text
    assert "Ada Lindqvist" in page.text


def test_the_list_goes_on_after_a_page_full(site: Site) -> None:
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


def test_a_new_learner_is_signed_in(site: Site) -> None:
    page = site.client.post("/learners", data={"name": "Grace Hopper"}, follow_redirects=True)
    assert page.request.path == "/"
    assert "Welcome, Grace Hopper." in page.text
    assert "Sign out" in page.text
    assert "No exercise finished yet." in site.client.get("/learners/grace-hopper").text


def test_an_exercise_is_answered(site: Site) -> None:
    ada = site.sign_in()
    answer = ada.post("/exercises/primes", data=ALL_RIGHT)
    assert answer.status_code == 303
    assert answer.location == "/exercises/primes"
    page = ada.get(answer.location)
    assert "“Hunting for primes” is finished: 15 points. The lock was free: " in page.text
    assert "Done today" in page.text
    assert "is finished" not in ada.get(answer.location).text, "said once"
    assert '<dd id="points">15</dd>' in ada.get("/").text
    assert ada.get("/learners/ada").text.count("<time ") == 1


def test_wrong_answers_come_back_with_the_reason(site: Site) -> None:
    page = site.sign_in().post("/exercises/primes", data={"question-0": "0", "question-1": "1"})
    assert page.status_code == 200
    assert "1 of 3 are right" in page.text
    assert "51 is 3 times 17" in page.text
    assert page.text.count(" checked>") == 2, "what was chosen is still chosen"
    assert site.learner()["points"] == 0


@pytest.mark.parametrize("nonsense", ["7", "-1", "x", ""])
def test_an_answer_that_is_no_choice_is_none(site: Site, nonsense: str) -> None:
    page = site.sign_in().post("/exercises/primes", data={**ALL_RIGHT, "question-0": nonsense})
    assert "2 of 3 are right" in page.text


def test_a_video_is_read_part_by_part(site: Site) -> None:
    ada = site.sign_in()
    assert "Most people need" in ada.get("/videos/tides").text
    ada.post("/videos/tides")
    quick = ada.post("/videos/tides", data={"part": "0"}, follow_redirects=True)
    assert quick.request.path == "/videos/tides"
    assert "That was quick!" in quick.text
    for part in range(4):
        site.later(60)
        page = ada.post("/videos/tides", data={"part": str(part)}, follow_redirects=True)
    assert "That was “Why the sea goes out”." in page.text
    assert "Read to the end" in ada.get("/videos/tides").text
    assert "✓" not in ada.get("/").text, "drawn by the style sheet"
    assert '<span class="awarded">Read</span>' in ada.get("/").text


def test_progress_is_kept(site: Site) -> None:
    site.sign_in().post("/videos/tides")
    site.later(60)
    site.sign_in().post("/videos/tides", data={"part": "0"})
    assert "1 of 4 parts" in site.sign_in().get("/").text


def test_a_refused_form_is_shown_again(site: Site) -> None:
    ada = site.sign_in()
    page = ada.post("/projects", data={"title": " "}, follow_redirects=True)
    assert page.request.path == "/projects"
    assert 'class="flash problem"' in page.text
    assert "a title is needed" in page.text
    home = site.client.post("/learners", data={"name": "ada"}, follow_redirects=True)
    assert home.request.path == "/"
    assert "There already is a learner" in home.text


def test_a_certificate_from_its_button(site: Site) -> None:
    for _ in range(4):
        site.client.post("/api/learners/ada/exercises/primes/finish")
    ada = site.sign_in()
    assert ada.get("/").text.count("Spend points") == 2
    page = ada.post(
        "/certificates", data={"course": "numbers", "request": new_key()}, follow_redirects=True
    )
    assert "Certificate “Everyday numbers” awarded for 60 points." in page.text
    assert '<span class="awarded">Awarded</span>' in page.text
    assert page.text.count("Spend points") == 1
    assert "Everyday numbers" in ada.get("/learners/ada").text


def test_names_are_escaped(site: Site) -> None:
    site.client.post("/api/learners", json={"id": "eve", "name": "<script>alert(1)</script>"})
    eve = site.sign_in("eve")
    for client, path in ((site.client, "/"), (eve, "/"), (eve, "/learners/eve")):
        text = client.get(path).text
        assert "<script>" not in text
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


def test_a_locked_learner_is_explained(site: Site) -> None:
    with site.somebody_else_holds("ada"):
        page = site.sign_in().post("/exercises/primes", data=ALL_RIGHT)
    assert page.status_code == 503
    assert page.headers["Retry-After"]
    assert "Another request is changing this learner right now" in page.text


def test_a_write_in_doubt_is_not_to_be_retried(
    site: Site, datastore: userlock_emulator.Emulator
) -> None:
    """Of a put (`StaleWriteError.may_have_landed`)."""
    ada = site.sign_in()
    datastore.faults.drop_reply(kind="Learner")
    page = ada.post("/exercises/primes", data=ALL_RIGHT)
    assert page.status_code == 500
    assert "Check the learner before you try again" in page.text
    assert "Retry-After" not in page.headers
    assert site.learner()["points"] == 15, "it has landed"


def test_a_bonus_whose_reply_is_lost_is_found_out(
    site: Site, datastore: userlock_emulator.Emulator
) -> None:
    """The row of its request is in the same commit: the library looks whether it is there."""
    site.client.post("/tasks/seed")
    mira = site.app.test_client()
    mira.post("/sign-in", data={"coach": "coach:mira"})
    datastore.faults.drop_reply(kind="Learner")
    bonus = {"learner": "ada", "points": "5", "word": "", "request": new_key()}
    assert "5 points each" in mira.post("/coach", data=bonus, follow_redirects=True).text
    assert site.learner()["points"] == 5


def test_a_payment_whose_reply_is_lost_is_found_out(
    site: Site, datastore: userlock_emulator.Emulator
) -> None:
    """The row of its job is in the same commit: the library looks whether it is there."""
    for _ in range(4):
        site.client.post("/api/learners/ada/exercises/primes/finish")
    ada = site.sign_in()
    datastore.faults.drop_reply(kind="Learner")
    assert (
        ada.post("/certificates", data={"course": "numbers", "request": new_key()}).status_code
        == 303
    )
    assert site.learner()["points"] == 0
    assert site.run_jobs() == 1


def test_while_datastore_does_not_answer_only_looking_is_to_be_tried_again(
    site: Site, datastore: userlock_emulator.Emulator
) -> None:
    ada = site.sign_in()
    datastore.faults.deadline_exceeded(rpc="Lookup")
    page = ada.get("/learners/ada")
    assert (page.status_code, page.headers["Retry-After"]) == (503, "1")
    datastore.faults.deadline_exceeded(rpc="Commit", applied=True)
    page = ada.post("/exercises/primes", data=ALL_RIGHT)
    assert page.status_code >= 500
    assert "Retry-After" not in page.headers
    for path in ("/exercises/primes", "/api/learners/ada/exercises/primes/finish"):
        datastore.faults.deadline_exceeded(rpc="Lookup")
        answer = ada.post(path, data=ALL_RIGHT)
        assert answer.status_code == 503
        assert "Retry-After" not in answer.headers


def test_nothing_is_loaded_from_elsewhere(site: Site) -> None:
    with site.client.get("/static/almanac.css") as answer:
        css = answer.get_data(as_text=True)
    ada = site.sign_in()
    pages = ("/", "/learners/ada", "/exercises/primes", "/videos/tides", "/projects", "/nightly")
    for text in (site.client.get("/").text, *(ada.get(page).text for page in pages), css):
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text
