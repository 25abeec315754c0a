"""Systems that cannot run here, from their documentation or source: read, not run.

Stripe: https://docs.stripe.com/api/idempotent_requests, https://docs.stripe.com/error-low-level
(API v1). rocket-rides-atomic: https://github.com/brandur/rocket-rides-atomic (`api.rb`,
`completer.rb`, `reaper.rb`), with the provider's key of https://brandur.org/idempotency-keys. It
needs Ruby and PostgreSQL, and is no package.
"""

from __future__ import annotations

_INSIDE = "not documented"

#: The outcomes in the order of the situations.
DOCUMENTED: dict[str, tuple[str, ...]] = {
    "Stripe": (
        "right: the saved status and body",
        "right (an error)",
        "right (409, not saved)",
        "right (409)",
        _INSIDE,
        _INSIDE,
        _INSIDE,
        _INSIDE,
        "right: saved whether it succeeds or fails",
        "the saved 500 again",
        _INSIDE,
        "a new request: keys may be removed after 24 h",
    ),
    "rocket-rides-atomic": (
        "right",
        "right (409)",
        "right (409)",
        "right (409, 429)",
        "right, after 90 s",
        "right, after 90 s",
        "right",
        "within a phase right (429); between phases its late write lands",
        "right",
        "the stored 503 again: no charge",
        "right: all is in PostgreSQL",
        "2 charges: the reaper deletes unfinished keys after 72 h",
    ),
}
