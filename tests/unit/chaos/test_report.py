"""The report of a run adds up its rounds."""

from __future__ import annotations

from collections import Counter

from tests.chaos.findings import Finding, Kind
from tests.chaos.history import History, Span
from tests.chaos.processes import Result
from tests.chaos.report import Report
from tests.chaos.verdict import Verdict

LOST = Finding(Kind.LOST, "w1", "of e")


def result(*findings: Finding, latest: float = 0.0) -> Result:
    history = History(spans=[Span("process stopped", 1.0, 3.0, who="p")])
    figures = {"operations": 5, "longest delay after a timeout, s": latest}
    verdict = Verdict(list(findings), Counter(flushed=1), figures, Counter({"packets late": 2}))
    return Result(history, verdict, [], seconds=60.0)


def test_rounds_are_added_up() -> None:
    report = Report("7")
    report.add(result(latest=0.5))
    report.add(result(latest=0.2), 2)
    facts = report.facts()
    assert (facts["rounds"], facts["hours"]) == (2, 0.033)
    assert facts["figures"]["operations"] == 10
    assert facts["figures"]["longest delay after a timeout, s"] == 0.5
    assert facts["figures"]["processes stopped, s"] == 4.0
    assert facts["faults"] == {"process stopped": 2}
    assert facts["effects of the faults"] == {"packets late": 4}
    assert facts["legitimate overlaps"] == {"flushed": 2}
    assert "no findings" in report.markdown()


def test_a_finding_names_its_round() -> None:
    report = Report("7")
    report.add(result(LOST), 3)
    assert report.facts()["findings"] == [f"round 3: {LOST}"]
    assert report.facts()["found"][Kind.LOST.value] == 1
    assert ": 1 finding\n" in report.markdown()
