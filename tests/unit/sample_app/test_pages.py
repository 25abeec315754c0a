"""Test the pages, as a browser without JavaScript uses them."""

from __future__ import annotations

import userlock_emulator
from sample_app.flows import new_key
from tests.unit.sample_app.conftest import Site

ALL_RIGHT = {"question-0": "2", "question-1": "1", "question-2": "1"}


def test_wrong_answers_come_back_with_the_reason(site: Site) -> None:
    page = site.sign_in().post("/exercises/primes", data={"question-0": "0", "question-1": "1"})
    assert page.status_code == 200
    assert "1 of 3 are right" in page.text
    assert "51 is 3 times 17" in page.text
    assert page.text.count(" checked>") == 2, "what was chosen is still chosen"
    assert site.learner()["points"] == 0


def test_names_are_escaped(site: Site) -> None:
    site.client.post("/api/learners", json={"id": "eve", "name": "<script>alert(1)</script>"})
    eve = site.sign_in("eve")
    for client, path in ((site.client, "/"), (eve, "/"), (eve, "/learners/eve")):
        text = client.get(path).text
        assert "<script>" not in text
        assert "&lt;script&gt;" in text


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
