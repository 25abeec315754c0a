"""HTML that escapes what it is given, so that no name or value in the data can become markup."""

import html
import re
from collections.abc import Iterable
from typing import TypeAlias, Union

_VOID = frozenset({"br", "input", "link", "meta"})
# Control characters, and characters that change the direction or the look of text around them.
# A name could hide behind them. Tabs and line ends stay.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
# Those of which a browser makes the same character again. (Of C1 controls it makes others.)
_REFERABLE = re.compile(f"(?![\0\x80-\x9f\ud800-\udfff]){_INVISIBLE.pattern}")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = Union[str, int, "Iterable[Child]", None]


def tag(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """Return an element.

    Args:
        name: its name.
        children: texts, which are escaped, and elements. None stands for nothing.
        attributes: with `_` for a hyphen, and at the end of a word of Python's (`class_`). True
            writes the name alone. False and None leave it out.
    """
    begin = f"<{name}{''.join(_attribute(*each) for each in attributes.items())}>"
    if name in _VOID:
        return Markup(begin)
    return Markup(f"{begin}{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """Return texts and elements one after the other."""
    return Markup("".join(map(_flat, children)))


def visible(text: str) -> str:
    """Return a text with escapes in place of characters that nobody would see."""
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def exact(text: str) -> Markup:
    """Return the content of a text area, which comes back with the form as it is."""
    return Markup("\n" + _kept(text))  # a browser leaves out the first line end


def _kept(text: str) -> str:
    """Return a text, escaped, from which a browser makes the same text again."""
    return _REFERABLE.sub(lambda match: f"&#{ord(match[0])};", html.escape(text))


def _flat(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int):
        return html.escape(visible(str(child)))
    return "".join(map(_flat, child))


def _attribute(name: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = str(value)
    # The value of a field comes back with its form.
    return f' {name}="{_kept(text) if name == "value" else html.escape(visible(text))}"'
