"""Test the pages, as a browser without JavaScript uses them."""

from __future__ import annotations

import userlock_emulator
from tests.unit.sample_app.conftest import Site

ALL_RIGHT = {"question-0": "2", "question-1": "1", "question-2": "1"}


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
