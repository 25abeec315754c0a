"""Test the coach's page: several learners at once, all or none."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from sample_app.flows import new_key
from sample_app.seed import BONUS
from tests.unit.sample_app.conftest import Site


@pytest.fixture
def mira(site: Site) -> FlaskClient:
    site.client.post("/tasks/seed")
    client = site.app.test_client()
    client.post("/sign-in", data={"coach": "coach:mira"})
    return client


def give(client: FlaskClient, *learners: str, points: int = 10, request: str = "") -> str:
    form = {
        "learner": list(learners),
        "points": str(points),
        "word": "Well done!",
        "request": request or new_key(),
    }
    return client.post("/coach", data=form, follow_redirects=True).text


def points(site: Site) -> dict[str, int]:
    learners = ("ada", "bruno", "chen", "dalia")
    return {each: int(str(site.learner(each)["points"])) for each in learners}


def left(client: FlaskClient) -> int:
    return int(client.get("/coach").text.split('id="bonus-left">')[1].split("<")[0])


def test_a_form_that_is_sent_twice_gives_once(site: Site, mira: FlaskClient) -> None:
    request = new_key()
    give(mira, "ada", "bruno", request=request)
    after = points(site)
    assert "it counts once" in give(mira, "ada", "bruno", request=request)
    assert points(site) == after
    assert left(mira) == BONUS - 20
    give(mira, "ada", "bruno")  # the negative control: the page was opened again
    assert left(mira) == BONUS - 40


@pytest.mark.parametrize("held", ["coach:mira", "chen"])
def test_if_one_cannot_be_had_nobody_gets_anything(
    site: Site, mira: FlaskClient, held: str
) -> None:
    before = points(site)
    with site.somebody_else_holds(held):
        assert "One moment, please" in give(mira, "ada", "bruno", "chen")
    assert points(site) == before
    assert left(mira) == BONUS
    for each in ("coach:mira", "ada", "bruno", "chen"):
        assert site.service.holder(each) is None, "none of the locks is left"
    # The negative control: no wait for a learner that is not ticked.
    with site.somebody_else_holds("bruno"):
        assert "10 points each for 2 learners." in give(mira, "ada", "chen")


REFUSED: list[tuple[list[str], int, str]] = [
    (["ada", "bruno", "chen"], 50, "This bonus costs 150 points; 100 are there to spend."),
    (["ada", "dalia"], 1, "Not in this group: dalia."),
    ([], 1, "tick at least one"),
    (["ada"], 51, "a whole number from 1 to 50"),
    (["NO"], 1, "small letters"),
]


def test_a_refused_bonus_changes_nothing(site: Site, mira: FlaskClient) -> None:
    for _ in range(8):
        give(mira, "bruno", points=50)
    before = points(site)
    for learners, amount, why in REFUSED:
        assert why in give(mira, *learners, points=amount)
        assert points(site) == before
        assert left(mira) == BONUS - 400
