"""Test the nightly job: locks, one run at a time, and by day from its page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sample_app import demonstration
from sample_app.learning import nightly
from sample_app.pages import nightly as nightly_page
from tests.unit.sample_app.conftest import Site

FINISH = "/api/learners/{}/exercises/primes/finish"


def shown_name(site: Site) -> str:
    with site.app.test_request_context():
        site.app.preprocess_request()
        return nightly_page._name(nightly.latest_run())


class Step:
    """Hold the job between its get and its put of a learner."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        monkeypatch.setattr(demonstration, "think", self._think)

    def _think(self) -> None:
        self.reached.set()
        assert self.go_on.wait(30)

    @contextmanager
    def inside(self, site: Site) -> Iterator[None]:
        """Run the jobs in another thread, and stop in the first learner."""
        thread = threading.Thread(target=site.run_jobs)
        thread.start()
        try:
            assert self.reached.wait(30)
            yield
        finally:
            self.go_on.set()
            thread.join(30)


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Step:
    return Step(monkeypatch)


@pytest.mark.parametrize("run_before", [True, False])
def test_no_parameter_starts_a_second_run(site: Site, step: Step, run_before: bool) -> None:
    """`after` is for display. It does not decide whether the job is running."""
    if run_before:
        step.go_on.set()
        site.nightly()
        step.go_on.clear()
        step.reached.clear()
        site.later(1)
    site.client.post("/nightly")
    with step.inside(site):
        for after in ("never", shown_name(site), "", "x", "9" * 5000):
            values = {"after": after}
            answer = site.client.post("/nightly", query_string=values, data=values)
            assert answer.location == "/nightly"
    assert site.run_jobs() == 0
    # The negative control: when none is running, the same request starts one.
    site.client.post("/nightly", query_string={"after": "never"})
    assert site.run_jobs() == 1


def test_a_run_that_failed_goes_on_where_it_was(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker ends with an error between two pages; the outbox runs the job again."""
    monkeypatch.setattr(nightly, "PAGE", 1)
    site.client.post("/api/learners", json={"id": "bruno", "name": "Bruno"})
    award = nightly._award
    failed: list[object] = []

    def fail_once(key: object, run: object) -> None:
        if getattr(key, "id")() == "bruno" and not failed:  # noqa: B009
            failed.append(key)
            raise RuntimeError("out of memory")
        award(key, run)  # type: ignore[arg-type]

    monkeypatch.setattr(nightly, "_award", fail_once)
    site.client.post("/nightly")
    site.run_jobs()
    assert "1 of 2 learners done." in site.client.get("/nightly").text
    site.relay()
    assert failed
    report = site.client.get("/nightly.json").get_json()["report"]
    assert (report["learners"], report["done"]) == (2, 2)


def test_a_locked_learner_is_skipped(site: Site) -> None:
    site.client.post("/api/learners", json={"id": "bruno", "name": "Bruno"})
    for each in ("ada", "bruno"):
        site.client.post(FINISH.format(each), auth=(each, ""))
    with site.somebody_else_holds("ada"):
        report = site.nightly()
    assert (report["learners"], report["badges_awarded"], report["skipped"]) == (2, 1, 1)
    assert site.learner("ada")["badges"] == []
    assert site.learner("bruno")["badges"] == ["first-step"]


def test_one_run_at_a_time(site: Site) -> None:
    """The job waits for its owner's lock, and runs then."""
    site.client.post(FINISH.format("ada"))
    with site.somebody_else_holds(nightly.LOCK_ID):
        assert site.client.post("/tasks/award-badges").status_code == 202
        site.run_jobs()
        assert site.learner("ada")["badges"] == []
    site.relay()
    assert site.learner("ada")["badges"] == ["first-step"]
