"""The waits of people and of batch work as a picture (SVG).

A curve shows the share of the requests that waited at most so long.
"""

from __future__ import annotations

from collections.abc import Sequence

from sample_app.lab.crew import Visit
from sample_app.lab.outcome import milliseconds

_WIDTH, _HEIGHT = 420, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 14, 44


def svg(visits: Sequence[Visit], about: str, longest: float) -> str:
    """Return the picture; its colours are those of `static/timeline.css`.

    Args:
        visits: the requests.
        about: names the run, for readers of screens.
        longest: the wait at the right end, in seconds.
    """
    longest = max(longest, 0.001)
    bottom = _HEIGHT - _BOTTOM

    def x(wait: float) -> float:
        return _LEFT + wait / longest * (_WIDTH - _LEFT - _RIGHT)

    def y(share: float) -> float:
        return bottom - share * (bottom - _TOP)

    groups = [
        ("of-interactive", "people", [visit.waited for visit in visits if not visit.batch]),
        ("of-batch", "batch", [visit.waited for visit in visits if visit.batch]),
    ]
    told = "; ".join(
        f"{name}: half within {milliseconds(_at(waits, 0.5))}, all within "
        f"{milliseconds(max(waits) * 1000)}"
        for _, name, waits in groups
        if waits
    )
    parts = [
        f'<svg class="timeline waits-plot" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-label="Waits, {about}: {told}">'
    ]
    for share in (0.0, 0.5, 1.0):
        parts.append(
            f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(share):g}" '
            f'y2="{y(share):g}"/><text class="lane" x="{_LEFT - 6}" y="{y(share) + 4:g}">'
            f"{share:.0%}</text>"
        )
    # Ticks that would say the same are left out.
    for part in (0.0, 0.5, 1.0) if longest >= 0.002 else (0.0, 1.0):
        anchor = "middle" if part < 1 else "end"
        parts.append(
            f'<text x="{x(part * longest):.1f}" y="{bottom + 16}" text-anchor="{anchor}">'
            f"{milliseconds(part * longest * 1000)}</text>"
        )
    at = float(_LEFT)
    for kind, name, waits in groups:
        if not waits:
            continue
        points = [f"{x(0):.1f},{y(0):.1f}"]
        for number, wait in enumerate(sorted(waits)):
            for share in (number / len(waits), (number + 1) / len(waits)):
                points.append(f"{x(wait):.1f},{y(share):.1f}")
        points.append(f"{x(longest):.1f},{y(1):.1f}")
        parts.append(f'<polyline class="curve {kind}" points="{" ".join(points)}"/>')
        parts.append(
            f'<rect class="{kind}" x="{at:g}" y="{_HEIGHT - 16}" width="18" height="4"/>'
            f'<text class="key" x="{at + 24:g}" y="{_HEIGHT - 10}">{name}</text>'
        )
        at += 90
    return "\n".join([*parts, "</svg>"])


def _at(waits: Sequence[float], share: float) -> float:
    """Return the wait within which that share of the requests was served, in milliseconds."""
    return sorted(waits)[min(int(len(waits) * share), len(waits) - 1)] * 1000
