"""Degraded leases are counted if there was no fault of the store."""

from __future__ import annotations

import pytest

from tests.chaos.history import Asked, Span
from tests.chaos.verdict import unprovoked

ASKED = Asked("ann", "p1", False, 10.0, 5.0, granted=10.1, degraded=True)
REFUSED = Asked("ann", "p1", False, 10.0, 5.0, failed=10.1, error="LockServiceUnavailable")


@pytest.mark.parametrize("asked", [ASKED, REFUSED])
@pytest.mark.parametrize(
    ("fault", "count"),
    [
        (Span("memcached stopped", 9.0, 9.9), 0),
        (Span("memcached stopped", 7.0, 9.0), 0),
        (Span("memcached stopped", 6.0, 8.0), 1),  # long ago
        (Span("memcached stopped", 10.2, 11.0), 1),  # later
        (Span("process stopped", 9.0, 10.0, who="p1"), 0),
        (Span("process stopped", 9.0, 10.0, who="p2"), 1),
    ],
)
def test_a_fault_is_a_reason(asked: Asked, fault: Span, count: int) -> None:
    assert unprovoked([asked], [fault]) == count


def test_a_confirmed_lease_needs_no_reason() -> None:
    granted = Asked("ann", "p1", False, 10.0, 5.0, granted=10.1)
    refused = Asked("ann", "p1", False, 10.0, 5.0, failed=15.0, error="LockTimeout")
    assert unprovoked([granted, refused], []) == 0
