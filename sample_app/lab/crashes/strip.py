"""The orders as a picture (SVG): a cell for each, with the number of its effects."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from sample_app.lab.crashes.outcome import Order

_SIZE, _STEP, _PER_ROW = 26, 32, 10
_LEFT, _TOP, _BOTTOM = 4, 18, 30


def svg(orders: Sequence[Order], title: str) -> str:
    """Return the picture; its colours are those of `static/timeline.css`.

    Args:
        orders: the orders, as they were sent.
        title: names the run, for readers of screens.
    """
    rows = -(-len(orders) // _PER_ROW)
    width = 2 * _LEFT + _STEP * _PER_ROW
    bottom = _TOP + rows * (_STEP + 8)
    wrong = sum(order.wrong for order in orders)
    told = f"{title}: {len(orders) - wrong} of {len(orders)} orders with their effect once"
    parts = [
        f'<svg class="timeline strip" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'viewBox="0 0 {width} {bottom + _BOTTOM}" '
        f'aria-label="{escape(told, {chr(34): "&quot;"})}">'
    ]
    for number, order in enumerate(orders):
        row, column = divmod(number, _PER_ROW)
        parts += _cell(_LEFT + column * _STEP, _TOP + row * (_STEP + 8), order)
    at = float(_LEFT)
    for kind, text in (
        ("of-interactive", "its effect once"),
        ("lost", "never, or more than once"),
    ):
        parts.append(
            f'<rect class="{kind}" x="{at:g}" y="{bottom + 10}" width="14" height="14"/>'
            f'<text x="{at + 20:g}" y="{bottom + 21}">{text}</text>'
        )
        at += 40 + 7 * len(text)
    return "\n".join([*parts, "</svg>"])


def _cell(x: int, y: int, order: Order) -> list[str]:
    kind = "lost" if order.wrong else "of-interactive"
    middle = x + _SIZE / 2
    cell = [
        f'<rect class="{kind}" x="{x}" y="{y}" width="{_SIZE}" height="{_SIZE}" rx="3"/>'
        f'<text class="effects" x="{middle:g}" y="{y + _SIZE / 2 + 4:g}">{order.effects}</text>'
    ]
    if order.killed:
        cell.append(f'<text class="killed centred" x="{middle:g}" y="{y - 4}">✕</text>')
    return cell
