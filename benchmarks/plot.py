"""A plot of the waits for a lock: a self-contained SVG file for the documentation.

There is one curve for each contender: the share of its waits that were over by a time. The time
axis is logarithmic, as waits range from microseconds to seconds. A fair lock's curve is steep, as
all waits are alike. An unfair one's curve extends to the right by the waits of starved waiters.

Light and dark follow the reader's preference. Curves also differ by their dashes, and the figures
are next to the names, so that no information is in colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from benchmarks.figures import percentile

TITLE = "Waits for the lock"
_CAPTION = (
    "Each wait counts once. A process that keeps retaking the lock has many short waits, "
    "the others have a few long ones."
)
_WIDTH, _HEIGHT = 968, 548
_LEFT, _RIGHT, _TOP, _BOTTOM = 68, 690, 108, 456
_LEGEND = 722
_FIRST_SECONDS = 0.0001
#: Colour (light, dark) and dashes. The first two are ours.
_OURS = (("#0a58ca", "#79b8ff", ""), ("#0a58ca", "#79b8ff", "7 5"))
_OTHERS = (
    ("#9a5b00", "#e3a84f", ""),
    ("#7b3fb8", "#c8a2f4", "10 4"),
    ("#b3261e", "#ff9288", "3 3"),
    ("#00766c", "#4fd1c2", ""),
    ("#596300", "#c3d04e", "10 4"),
    ("#a81b68", "#ff94c9", "3 3"),
)
_STYLE = """\
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink); }
  .title { font-size: 19px; font-weight: 600; }
  .quiet { fill: var(--quiet); font-size: 12px; }
  .ours { font-weight: 600; }
  .paper { fill: var(--paper); }
  .grid { stroke: var(--grid); stroke-width: 1; }
  .fine { stroke: var(--fine); stroke-width: 1; }
  .axis { stroke: var(--quiet); stroke-width: 1; }
  .curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: butt; }
  .curve.ours { stroke-width: 3.5; }
"""
_LIGHT = {
    "ink": "#1b1f24",
    "quiet": "#57606a",
    "paper": "#ffffff",
    "grid": "#d5dae0",
    "fine": "#eef0f3",
}
_DARK = {
    "ink": "#e8edf3",
    "quiet": "#a3adb9",
    "paper": "#14181d",
    "grid": "#38404a",
    "fine": "#20262d",
}


def subtitle(versions: Mapping[str, str]) -> str:
    """Return a description of the measurement and the machine."""
    on = ", ".join(f"{name} {version}" for name, version in versions.items())
    played = "Eight processes, one lock, visits of 5 ms, 0 to 10 ms between visits"
    return f"{played}; {on}" if on else played


def svg(waits: Mapping[str, Sequence[float]], *, subtitle: str) -> str:
    """Return the plot.

    Args:
        waits: by contender the length of each wait, in seconds; ours begin with `userlock`.
        subtitle: the description of the measurement.

    Raises:
        ValueError: there are no waits.
    """
    if not waits or not all(waits.values()):
        raise ValueError("no waits to show")
    last = max(max(values) for values in waits.values())
    axis = _Axis(last)
    looks = dict(_looks(waits))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-labelledby="title description">',
            f'<title id="title">{escape(TITLE)}</title>',
            f'<desc id="description">{escape(_description(waits, subtitle))}</desc>',
            f"<style>\n{_styles(looks)}</style>",
            f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>',
            f'<text class="title" x="{_LEFT}" y="38">{escape(TITLE)}</text>',
            f'<text class="quiet" x="{_LEFT}" y="60">{escape(subtitle)}</text>',
            *axis.lines(),
            # Ours are drawn on top of all others.
            *(
                _curve(values, axis, *looks[name])
                for name, values in sorted(waits.items(), key=lambda one: _is_ours(one[0]))
            ),
            *_legend(waits, looks),
            _text(_LEFT, _HEIGHT - 18, _CAPTION, kind="quiet"),
            "</svg>\n",
        ]
    )


class _Axis:
    """The axes: seconds to the right, logarithmic in whole decades; shares upwards."""

    def __init__(self, last_seconds: float) -> None:
        self._first = round(math.log10(_FIRST_SECONDS))
        self._decades = max(1, math.ceil(math.log10(last_seconds)) - self._first)

    def x(self, seconds: float) -> float:
        """Return the x of a time. Times shorter than the axis are at its left end."""
        decades = math.log10(max(seconds, _FIRST_SECONDS)) - self._first
        return _LEFT + (_RIGHT - _LEFT) * decades / self._decades

    def lines(self) -> Iterator[str]:
        """Yield the grid with its labels."""
        for decade in range(self._decades + 1):
            seconds = 10.0 ** (self._first + decade)
            if decade < self._decades:
                for digit in range(2, 10):
                    yield _line("fine", self.x(seconds * digit), _TOP, y2=_BOTTOM)
            yield _line("grid", self.x(seconds), _TOP, y2=_BOTTOM)
            label = ("≤ " if not decade else "") + time_text(seconds)
            yield _text(self.x(seconds), _BOTTOM + 22, label, anchor="middle")
        for percent in (0, 25, 50, 75, 100):
            yield _line("grid", _LEFT, y(percent), x2=_RIGHT)
            yield _text(_LEFT - 10, y(percent) + 4.5, f"{percent} %", anchor="end")
        yield _line("axis", _LEFT, _BOTTOM, x2=_RIGHT)
        yield _text((_LEFT + _RIGHT) / 2, _BOTTOM + 48, "wait for the lock", anchor="middle")
        yield _text(_LEFT, _TOP - 14, "share of finished waits", kind="quiet")


def y(percent: float) -> float:
    """Return the y of a share."""
    return _BOTTOM - (_BOTTOM - _TOP) * percent / 100


def points(waits: Sequence[float], *, steps: int = 160) -> list[tuple[float, float]]:
    """Return the curve: time in seconds, and the percentage of waits that were over by then.

    Many waits are reduced to `steps` quantiles, closer together towards the tail.
    """
    shares = [100 * step / steps for step in range(steps + 1)]
    shares += [99 + step / 20 for step in range(20)]
    return [(percentile(waits, share), share) for share in sorted(set(shares))]


def time_text(seconds: float) -> str:
    """Return a readable time."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    milliseconds = seconds * 1000
    if milliseconds >= 100:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds:.2g} ms"


def _is_ours(name: str) -> bool:
    return name.startswith("userlock")


def _looks(waits: Mapping[str, Sequence[float]]) -> Iterator[tuple[str, tuple[str, bool]]]:
    """Yield by contender its class, and whether it is ours."""
    counts = {True: 0, False: 0}
    for name in waits:
        ours = _is_ours(name)
        kinds = len(_OURS if ours else _OTHERS)
        yield name, (f"{'u' if ours else 'o'}{counts[ours] % kinds}", ours)
        counts[ours] += 1


def _styles(looks: Mapping[str, tuple[str, bool]]) -> str:
    used = {kind for kind, _ in looks.values()}
    colours = {
        f"{letter}{number}": look
        for letter, group in (("u", _OURS), ("o", _OTHERS))
        for number, look in enumerate(group)
        if f"{letter}{number}" in used
    }
    light = _variables({**_LIGHT, **{kind: look[0] for kind, look in colours.items()}})
    dark = _variables({**_DARK, **{kind: look[1] for kind, look in colours.items()}})
    lines = [
        f"  svg {{ {light} }}",
        f"  @media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}",
        _STYLE.rstrip("\n"),
    ]
    for kind, (_, _, dashes) in colours.items():
        dashed = f" stroke-dasharray: {dashes};" if dashes else ""
        lines.append(f"  .{kind} {{ stroke: var(--{kind});{dashed} }}")
        lines.append(f"  .dot-{kind} {{ fill: var(--{kind}); }}")
    return "\n".join(lines) + "\n"


def _variables(values: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in values.items())


def _curve(waits: Sequence[float], axis: _Axis, kind: str, ours: bool) -> str:
    way = " ".join(f"{axis.x(seconds):.1f},{y(share):.1f}" for seconds, share in points(waits))
    end = f'cx="{axis.x(max(waits)):.1f}" cy="{y(100):.1f}" r="{5 if ours else 4}"'
    return (
        f'<polyline class="curve {kind}{" ours" if ours else ""}" points="{way}"/>'
        f'<circle class="dot-{kind}" {end}/>'
    )


def _legend(
    waits: Mapping[str, Sequence[float]], looks: Mapping[str, tuple[str, bool]]
) -> Iterator[str]:
    """Yield the names, ours first and then by the longest wait, each with its figures."""
    yield _text(_LEGEND, _TOP - 14, "the dot: the longest wait", kind="quiet")
    row = _TOP + 10
    for name in sorted(waits, key=lambda name: 0.0 if _is_ours(name) else max(waits[name])):
        kind, ours = looks[name]
        both = " ours" if ours else ""
        yield f'<path class="curve {kind}{both}" d="M{_LEGEND} {row - 4}h34"/>'
        yield _text(_LEGEND + 46, row, name, kind="ours" if ours else "")
        yield _text(_LEGEND + 46, row + 17, _figures(waits[name]), kind="quiet")
        row += 44


def _figures(waits: Sequence[float]) -> str:
    return f"median {time_text(percentile(waits, 50))}, longest {time_text(max(waits))}"


def _description(waits: Mapping[str, Sequence[float]], subtitle: str) -> str:
    each = "; ".join(f"{name}: {_figures(values)}" for name, values in waits.items())
    return (
        f"{subtitle}. A curve for each lock shows the share of its waits that were over by a time, "
        f"on a logarithmic axis. Waits by lock: {each}."
    )


def _line(
    kind: str, x1: float, y1: float, *, x2: float | None = None, y2: float | None = None
) -> str:
    x2, y2 = x1 if x2 is None else x2, y1 if y2 is None else y2
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "", kind: str = "") -> str:
    more = f' text-anchor="{anchor}"' if anchor else ""
    more += f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>'
