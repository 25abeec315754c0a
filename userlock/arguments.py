"""Check the arguments that callers give."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def check_number(name: str, value: object, *, least: float, most: float, unit: str = "") -> float:
    """Return a number from `least` to `most`.

    Args:
        name: what it is, for the error, such as `"wait_timeout"`.
        value: the number. True and False are none.
        least: the least.
        most: the most.
        unit: what it counts, such as `"seconds"`.

    Raises:
        TypeError: it is no number.
        ValueError: it is out of bounds, or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        counts = f" of {unit}" if unit else ""
        raise TypeError(f"{name} must be a number{counts}, not {value!r:.80}")
    if not least <= value <= most:
        counts = f" {unit}" if unit else ""
        bounds = f"at least {least:,g}" + ("" if most == math.inf else f" and at most {most:,.9g}")
        raise ValueError(f"{name} must be {bounds}{counts}, not {value!r:.80}")
    return value


def check_count(name: str, value: object, *, least: int, most: float = math.inf) -> int:
    """Return a whole number from `least` to `most`; see `check_number`."""
    check_number(name, value, least=least, most=most)
    if not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r:.80}")
    return value


def check_seconds(name: str, value: object, *, least: float = 0.001, most: float) -> float:
    """Return a number of seconds as a float; see `check_number`."""
    return float(check_number(name, value, least=least, most=most, unit="seconds"))


def check_bool(name: str, value: object) -> bool:
    """Return `value` if it is True or False; raise TypeError otherwise ("false" is true)."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r:.100}")
    return value


def check_texts(name: str, value: object, words: str) -> tuple[str, ...]:
    """Return several texts as a tuple; raise TypeError for one text, or something else among them.

    `words` name them, as in `"paths"`.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of {words}, not {value!r:.80}")
    texts = tuple(value)
    for each in texts:
        check_kind(f"each of {name}", each, str, "a str")
    return texts


def check_errors(name: str, kinds: Iterable[object]) -> None:
    """Raise TypeError if one of some values is no class of errors."""
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(f"{name} takes classes of errors, not {kind!r:.80}")


def check_kind(name: str, value: object, kind: Any, words: str) -> None:
    """Raise TypeError if a value is not of a class; `words` name the class, as in `"a str"`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {words}, not {value!r:.80}")
