"""Holders and waiters as a picture (SVG), with a lane for each client."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from sample_app.lab.crew import Visit

STYLE_SHEET = Path(__file__).parents[1] / "static" / "timeline.css"

_LEFT, _RIGHT, _TOP, _LANE, _BOTTOM, _KEY = 86, 12, 38, 18, 52, 28
_WIDTH = 960


def svg(
    visits: Sequence[Visit],
    title: str,
    seconds: float = 0.0,
    *,
    lost: Sequence[bool] = (),
    killed_at: float | None = None,
    styled: bool = True,
    key: bool = True,
) -> str:
    """Return the picture. Its colours are CSS classes, so that the page's own scheme decides.

    Args:
        visits: the requests to draw.
        title: the heading.
        seconds: the time span of the width, or the visits' own span if that is longer.
        lost: for each visit, whether its update was lost.
        killed_at: the time when memcached was killed, if it was.
        styled: include the style sheet. A page links `static/timeline.css` instead.
        key: say below it what its colours mean.
    """
    lost = lost or [False] * len(visits)
    start = min(visit.asked for visit in visits)
    seconds = max(max(visit.ended for visit in visits) - start, seconds, 0.001)
    lanes = max(visit.client for visit in visits) + 1
    height = _TOP + lanes * _LANE + (_BOTTOM if key else _BOTTOM - _KEY)
    batch = {visit.client for visit in visits if visit.batch}

    def x(moment: float) -> float:
        return _LEFT + (moment - start) / seconds * (_WIDTH - _LEFT - _RIGHT)

    parts = [
        f'<svg class="timeline" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'viewBox="0 0 {_WIDTH} {height}" aria-label="{escape(title, {chr(34): "&quot;"})}">',
        f"<style>{STYLE_SHEET.read_text()}</style>" if styled else "",
        f'<text class="title" x="{_LEFT}" y="15">{escape(title)}</text>',
    ]
    for lane in range(lanes):
        y = _TOP + lane * _LANE
        priority = "batch" if lane in batch else "interactive"
        parts.append(
            f'<text class="lane" x="{_LEFT - 8}" y="{y + 12}">{priority} {lane + 1}</text>'
            f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y + 15}" y2="{y + 15}"/>'
        )
    for visit, is_lost in zip(visits, lost, strict=True):
        parts += _marks(visit, _TOP + visit.client * _LANE, x, lost=is_lost)
    if killed_at is not None:
        parts += _killed(x(killed_at), _TOP + lanes * _LANE)
    parts += _axis(seconds, _TOP + lanes * _LANE, x, start)
    if key:
        parts += _key(_TOP + lanes * _LANE)
    return "\n".join([*parts, "</svg>"])


#: Background and text of a picture that stands alone, by colour scheme.
SCHEMES = {"light": ("#ffffff", "#1f2328"), "dark": ("#0d1117", "#e6edf3")}


def together(pictures: Sequence[str], scheme: str) -> str:
    """Return pictures one below the other as one, for a page that has no style sheet of ours."""
    background, text = SCHEMES[scheme]
    placed, top = [], 0
    for picture in pictures:
        height = int(re.findall(rf'viewBox="0 0 {_WIDTH} (\d+)"', picture)[0])
        placed.append(picture.replace("<svg ", f'<svg y="{top}" height="{height}" ', 1))
        top += height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" color="{text}">'
        f"<style>{STYLE_SHEET.read_text()}</style>"
        f'<rect width="{_WIDTH}" height="{top}" fill="{background}"/>{"".join(placed)}</svg>\n'
    )


def _killed(x: float, bottom: float) -> list[str]:
    # Beside the line where there is more room.
    anchor, aside = ("start", 5) if x < _WIDTH / 2 else ("end", -5)
    return [
        f'<line class="killed" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{bottom}"/>',
        f'<text class="killed" x="{x + aside:.1f}" y="{_TOP - 4}" text-anchor="{anchor}">'
        f"memcached killed</text>",
    ]


def _marks(visit: Visit, y: float, x: Callable[[float], float], *, lost: bool = False) -> list[str]:
    kind = "of-batch" if visit.batch else "of-interactive"
    inside = visit.ended if visit.began is None else visit.began
    marks = [_bar("waits", x(visit.asked), x(inside), y + 6, 4)]
    if visit.began is not None:
        fate = " lost" if lost else "" if visit.accepted else " refused"
        degraded = " degraded" if visit.degraded else ""
        marks.append(_bar(f"{kind}{fate}{degraded}", x(visit.began), x(visit.ended), y + 2, 12))
    return marks


def _bar(kind: str, begin: float, end: float, y: float, height: float) -> str:
    return (
        f'<rect class="{kind}" x="{begin:.1f}" y="{y:g}" width="{max(end - begin, 0.6):.1f}" '
        f'height="{height:g}"/>'
    )


def _axis(seconds: float, y: float, x: Callable[[float], float], start: float) -> list[str]:
    step = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120) if seconds / step <= 12)
    marks = []
    count = 0
    while count * step <= seconds:
        moment = x(start + count * step)
        marks.append(f'<text class="axis" x="{moment:.1f}" y="{y + 16}">{count * step:g} s</text>')
        count += 1
    return marks


def _key(y: float) -> list[str]:
    marks = []
    key = [
        ("waits", "waiting"),
        ("of-interactive", "interactive request"),
        ("of-batch", "batch request"),
        ("of-interactive degraded", "without memcached"),
        ("of-interactive refused", "refused"),
        ("of-interactive lost", "lost update"),
    ]
    at = float(_LEFT)
    for kind, text in key:
        marks.append(_bar(kind, at, at + 18, y + 32, 10))
        marks.append(f'<text class="key" x="{at + 24:g}" y="{y + 41}">{text}</text>')
        at += 48 + 7.2 * len(text)
    return marks
