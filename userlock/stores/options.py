"""The parts that the URLs of all stores share."""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qsl


def options_of(parts: SplitResult, shown: str) -> dict[str, str]:
    """Return the options after the `?` of a store's URL, by name.

    Args:
        parts: the URL.
        shown: the URL for messages, without a password.

    Raises:
        ValueError: one is named twice, or a `#` ends them. Either would be passed over silently,
            and the locks be elsewhere than meant.
    """
    if parts.fragment:
        raise ValueError(f"{shown!r}: the text after # would not count; a # in an option is %23")
    named = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(named)
    if len(options) < len(named):
        raise ValueError(f"{shown!r}: an option is named twice")
    return options
