"""The options after the `?` in the URL of a store."""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qsl


def options_of(parts: SplitResult, shown: str, **defaults: str) -> dict[str, str]:
    """Return the options of a store's URL, by name.

    A `ValueError` shows the URL as `shown` (without a password): an option is
    unknown (if `defaults` names those that there are) or named twice, or a `#`
    ends them. Passed over silently, the locks would be elsewhere than meant.
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
