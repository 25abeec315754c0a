"""The table and the JSON lines."""

from __future__ import annotations

import json
import re

from benchmarks import report
from benchmarks.figures import Measurement, Ratio, RatioStyle, Section, Table

RATIO = Ratio(baseline="floor", value=1.484, p10=1.41, p90=1.6)
SECTION = Section(
    name="lock",
    title="Uncontended lock",
    method="Two round trips.",
    tables=(
        Table(
            title="one core",
            measurements=(
                Measurement(contender="floor", metric="pair", value=35.04, unit="us", samples=300),
                Measurement(
                    contender="userlock",
                    metric="pair",
                    value=152.3,
                    unit="us",
                    ratio=RATIO,
                    samples=300,
                ),
                Measurement(contender="userlock", metric="added", value=1.5, unit="us"),
            ),
        ),
    ),
)


def test_the_table_is_aligned() -> None:
    assert report.section_text(SECTION).splitlines() == [
        "Uncontended lock",
        "────────────────",
        "  Two round trips.",
        "",
        "  one core   pair µs   ratio     p10 to p90   added µs",
        "  --------   -------   -----   ------------   --------",
        "  floor         35.0",
        "  userlock       152    1.48   1.41 to 1.60       1.50",
    ]


def test_overheads_are_written_in_percent() -> None:
    table = Table(
        title="load",
        style=RatioStyle.OVERHEAD,
        measurements=(
            Measurement(
                contender="faster",
                metric="entity",
                value=0.97,
                unit="us",
                ratio=Ratio(baseline="plain", value=0.97, p10=0.95, p90=1.031),
            ),
        ),
    )
    section = Section(name="x", title="X", method="", tables=(table,))
    last = report.section_text(section).splitlines()[-1]
    assert re.split(" {2,}", last) == ["", "faster", "0.97", "-3.0 %", "-5.0 to +3.1 %"]


def test_large_numbers_and_other_units_are_readable() -> None:
    table = Table(
        title="memory",
        measurements=(
            Measurement(contender="a", metric="entity", value=12_853.4, unit="bytes"),
            Measurement(contender="a", metric="requests", value=15.04, unit="requests"),
        ),
    )
    text = report.section_text(Section(name="x", title="X", method="", tables=(table,)))
    head, _, row = text.splitlines()[-3:]
    assert head.split("   ") == ["  memory", "entity bytes", "requests"]
    assert row.split() == ["a", "12,853", "15.0"]


def test_json_has_an_object_per_figure() -> None:
    first, second, third = map(json.loads, report.section_lines(SECTION))
    assert first == {
        "section": "lock",
        "table": "one core",
        "contender": "floor",
        "metric": "pair",
        "value": 35.04,
        "unit": "us",
        "samples": 300,
    }
    assert (second["baseline"], second["ratio"]) == ("floor", 1.484)
    assert (second["ratio_p10"], second["ratio_p90"]) == (1.41, 1.6)
    assert "ratio" not in third


def test_the_machine_is_described_in_both_forms() -> None:
    facts = {"cores": 2, "Python": "3.11.7"}
    assert report.header(facts) == "userlock benchmarks\n  cores 2 · Python 3.11.7"
    assert [json.loads(line) for line in report.header_lines(facts)] == [
        {"section": "machine", "metric": "cores", "value": 2},
        {"section": "machine", "metric": "Python", "value": "3.11.7"},
    ]


def test_bounds_counts_and_indices_are_readable() -> None:
    table = Table(
        title="fair",
        measurements=(
            Measurement(contender="a", metric="first", value=5000, unit="ms", at_least=True),
            Measurement(contender="a", metric="Jain", value=0.99149, unit="index"),
            Measurement(contender="a", metric="timed out", value=3, unit="count"),
            Measurement(contender="a", metric="share", value=93.21, unit="percent"),
        ),
    )
    section = Section(name="x", title="X", method="", tables=(table,))
    head, _, row = report.section_text(section).splitlines()[-3:]
    assert re.split(" {2,}", head) == ["", "fair", "first ms", "Jain", "timed out", "share %"]
    assert re.split(" {2,}", row) == ["", "a", "> 5,000", "0.991", "3", "93.2"]
    first, second, *_ = map(json.loads, report.section_lines(section))
    assert first["at_least"] is True
    assert "at_least" not in second


def test_notes_follow_the_tables() -> None:
    section = Section(name="x", title="X", method="How.", tables=(), notes=("y is missing",))
    assert report.section_text(section).splitlines()[-1] == "  y is missing"
    assert list(map(json.loads, report.section_lines(section))) == [
        {"section": "x", "note": "y is missing"}
    ]


def test_a_table_without_figures_is_left_out() -> None:
    section = Section(
        name="x", title="X", method="How.", tables=(Table(title="t", measurements=()),)
    )
    assert report.section_text(section).splitlines() == ["X", "─", "  How."]
