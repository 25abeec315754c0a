"""The report: aligned text, or JSON lines for programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.figures import Measurement, Ratio, RatioStyle, Section, Table

_WIDTH = 92
_UNITS = {
    "us": "µs",
    "requests": "",
    "count": "",
    "index": "",
    "percent": "%",
    "per second": "/s",
}


def header(facts: Mapping[str, object]) -> str:
    """Describe the machine in words."""
    line = " · ".join(f"{name} {value}" for name, value in facts.items())
    return "userlock benchmarks\n" + _filled(line)


def header_lines(facts: Mapping[str, object]) -> Iterator[str]:
    """Describe the machine as JSON, an object per fact."""
    for name, value in facts.items():
        yield _json({"section": "machine", "metric": name, "value": value})


def section_lines(section: Section) -> Iterator[str]:
    """Yield a section as JSON, an object per figure."""
    for table in section.tables:
        for figure in table.measurements:
            record: dict[str, object] = {
                "section": section.name,
                "table": table.title,
                "contender": figure.contender,
                "metric": figure.metric,
                "value": round(figure.value, 4),
                "unit": figure.unit,
            }
            if figure.at_least:
                record["at_least"] = True
            if figure.samples:
                record["samples"] = figure.samples
            if figure.ratio is not None:
                record["baseline"] = figure.ratio.baseline
                record["ratio"] = round(figure.ratio.value, 4)
                record["ratio_p10"] = round(figure.ratio.p10, 4)
                record["ratio_p90"] = round(figure.ratio.p90, 4)
            yield _json(record)
    for note in section.notes:
        yield _json({"section": section.name, "note": note})


def section_text(section: Section) -> str:
    """Return a section as text."""
    title = f"{section.title}\n{'─' * len(section.title)}\n{_filled(section.method)}"
    notes = "\n".join(_filled(note, hang="    ") for note in section.notes)
    tables = [_table_text(table) for table in section.tables if table.measurements]
    return "\n\n".join([title, *tables, *([notes] if notes else [])])


def _json(record: Mapping[str, object]) -> str:
    return json.dumps(record, ensure_ascii=False)


def _filled(text: str, hang: str = "  ") -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent=hang)


def _table_text(table: Table) -> str:
    figures = {(figure.contender, figure.metric): figure for figure in table.measurements}
    contenders = list(dict.fromkeys(figure.contender for figure in table.measurements))
    head: list[str] = [table.title]
    columns: list[list[str]] = [contenders]
    for metric in dict.fromkeys(figure.metric for figure in table.measurements):
        column = [figures.get((contender, metric)) for contender in contenders]
        unit = next(figure.unit for figure in column if figure is not None)
        head.append(f"{metric} {_UNITS.get(unit, unit)}".rstrip())
        columns.append([_value(figure) for figure in column])
        ratios = [None if figure is None else figure.ratio for figure in column]
        if any(ratio is not None for ratio in ratios):
            head += ["ratio" if table.style is RatioStyle.TIMES else "overhead", "p10 to p90"]
            columns.append([_ratio(ratio, table.style) for ratio in ratios])
            columns.append([_spread(ratio, table.style) for ratio in ratios])
    return _aligned([head, *(list(row) for row in zip(*columns, strict=True))])


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append(("  " + "   ".join(cells)).rstrip())
    lines.insert(1, "  " + "   ".join("-" * width for width in widths))
    return "\n".join(lines)


def _value(figure: Measurement | None) -> str:
    if figure is None:
        return ""
    return f"> {_number(figure)}" if figure.at_least else _number(figure)


def _number(figure: Measurement) -> str:
    if figure.unit == "index":
        return f"{figure.value:.3f}"
    if figure.unit in {"bytes", "count"} or abs(figure.value) >= 100:
        return f"{figure.value:,.0f}"
    return f"{figure.value:.1f}" if abs(figure.value) >= 10 else f"{figure.value:.2f}"


def _ratio(ratio: Ratio | None, style: RatioStyle) -> str:
    if ratio is None:
        return ""
    return f"{ratio.value:.2f}" if style is RatioStyle.TIMES else f"{_percent(ratio.value)} %"


def _spread(ratio: Ratio | None, style: RatioStyle) -> str:
    if ratio is None:
        return ""
    if style is RatioStyle.TIMES:
        return f"{ratio.p10:.2f} to {ratio.p90:.2f}"
    return f"{_percent(ratio.p10)} to {_percent(ratio.p90)} %"


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f}"
