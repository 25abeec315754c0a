"""Draw small charts as SVG, in the colours of the page's style sheet. No scripts."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

_WIDTH = 640
_ROW = 26
_LEFT = 90
_RIGHT = 60


def bars(title: str, values: Sequence[tuple[str, int]]) -> Markup:
    """Return a chart with a bar for each name; its title has the figures for screen readers."""
    most = max((value for _, value in values), default=0) or 1
    told = ", ".join(f"{name}: {value:,}" for name, value in values)
    parts = [_begin(f"{title}: {told}", len(values) * _ROW)]
    for row, (name, value) in enumerate(values):
        top = row * _ROW
        length = value / most * (_WIDTH - _LEFT - _RIGHT)
        parts.append(
            f'<text x="{_LEFT - 8}" y="{top + 17}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="bar" x="{_LEFT}" y="{top + 4}" width="{max(length, 1):.1f}" '
            f'height="{_ROW - 9}"/>'
            f'<text x="{_LEFT + length + 8:.1f}" y="{top + 17}">{value:,}</text>'
        )
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 (numbers, and escaped)


def periods(
    title: str,
    begin: float,
    end: float,
    spans: Sequence[tuple[float, float]],
    ends: tuple[str, str],
) -> Markup:
    """Return a line of time with a mark for each span.

    Args:
        title: says for screen readers how many there are.
        begin: the time at the left end.
        end: the time at the right end.
        spans: begin and end of each period.
        ends: the words below the two ends.
    """
    scale = _WIDTH / max(end - begin, 0.001)
    parts = [
        _begin(title, 44),
        f'<line class="axis" x1="0" x2="{_WIDTH}" y1="14" y2="14"/>',
        f'<text x="0" y="40">{escape(ends[0])}</text>',
        f'<text x="{_WIDTH}" y="40" text-anchor="end">{escape(ends[1])}</text>',
    ]
    for since, until in spans:
        left = max(since - begin, 0.0) * scale
        width = max((until - since) * scale, 3)
        parts.append(
            f'<rect class="trouble" x="{min(left, _WIDTH - width):.1f}" y="4" '
            f'width="{width:.1f}" height="20"/>'
        )
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 (numbers, and escaped)


def _begin(title: str, height: int) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">'
    )
