"""The options after the `?` in the URL of a store."""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qsl


def options_of(parts: SplitResult, shown: str, **defaults: str) -> dict[str, str]:
    """Return the options of a store's URL, by name.

    Args:
        parts: the URL.
        shown: the URL for messages, without a password.
        defaults: the options that there are; if none are named, any are taken.

    Raises:
        ValueError: one is unknown or named twice, or a `#` ends them. They would be passed over
            silently, and the locks be elsewhere than meant.
    """
    if parts.fragment:
        raise ValueError(f"{shown!r}: the text after # would not count; a # in an option is %23")
    named = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(named)
    if len(options) < len(named):
        raise ValueError(f"{shown!r}: an option is named twice")
    unknown = ", ".join(name for name in options if name not in defaults)
    if defaults and unknown:
        raise ValueError(f"{shown!r}: unknown option {unknown}; there are: {', '.join(defaults)}")
    return defaults | options
