"""Test the pages, as a browser without JavaScript uses them."""

from __future__ import annotations

import pytest

import userlock_emulator
from tests.unit.sample_app.conftest import Site

ALL_RIGHT = {"question-0": "2", "question-1": "1", "question-2": "1"}


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


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/", '<a href="/" aria-current="page">Today</a>'),
        ("/", ": today</h1>"),
        ("/", "Awarded each night, by the"),
        ("/learners/ada", ": record</h1>"),
        ("/projects", 'aria-current="page">Projects</a>'),
        ("/projects", "Up to 3 active projects; you have 0."),
        ("/jobs", 'run the <a href="/nightly">nightly job</a>, which awards badges'),
        ("/no-such-page", "There is no such page."),
    ],
)
def test_what_a_newcomer_reads(site: Site, path: str, words: str) -> None:
    assert words in site.sign_in().get(path).text
