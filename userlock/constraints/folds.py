"""Functions for `Unique(fold=…)` and computed properties: values that count as one become equal."""

from __future__ import annotations

import re
import unicodedata
from typing import TypeVar

#: Unicode's default ignorable code points: joiners, direction marks, variation selectors, fillers.
#: Fixed, not by Python's Unicode version: two processes must fold alike.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_MOST_CHARACTERS = 1_500
#: The density of a picture: `@2x`, `@1.5x`.
_DENSITY = re.compile(r"@\d+(\.\d+)?x$", re.IGNORECASE)
#: An extension: letters and digits, not all of them digits (`v1.2` has none).
_EXTENSION = re.compile(r"\.(?=[^.]*[^\W\d_])[^\W_]{1,10}$")


StrOrNone = TypeVar("StrOrNone", str, None)


def caseless(text: StrOrNone) -> StrOrNone:
    """Fold case and Unicode forms, and runs of white space: `Café  Nord` and `CAFÉ NORD` are one.

    By Unicode's identifier caseless matching (D147): ligatures, full-width letters and `ß`,
    written as `ss`, are equal too, and characters that nobody sees do not count. Look-alikes of
    other scripts are not equal. None stays None.

    Raises:
        ValueError: the text has more than 1,500 characters, as no indexed property has. The time
            for one with many accents grows with the square of its length.
    """
    if text is None:
        return None
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(
            f"a text of {len(text):,} characters is not folded; the most is {_MOST_CHARACTERS:,}. "
            f"To fix it: bound its length where it comes in"
        )
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFD", text).casefold())
    folded = unicodedata.normalize("NFKC", _INVISIBLE.sub("", folded).casefold())
    return " ".join(folded.split())


def image_name(file_name: StrOrNone) -> StrOrNone:
    """Return the name of a picture without extension and pixel density, caseless.

    `home.png`, `home.jpg`, `Home@2x.png` and `home@3x.gif` are one picture, `home`. A folder
    before the name counts. None stays None.
    """
    if file_name is None:
        return None
    folded = caseless(file_name)
    return _DENSITY.sub("", _EXTENSION.sub("", folded)).strip() or folded
