"""The limits of platforms, and the leases that follow from them."""

from __future__ import annotations

import pytest

from userlock import LockPolicy, LockService
from userlock.platforms import request_limits
from userlock.stores import MemoryStore

VARIABLES = (
    *("USERLOCK_REQUEST_SECONDS", "CLOUD_RUN_TIMEOUT_SECONDS"),
    *("GAE_ENV", "GAE_APPLICATION", "K_SERVICE"),
)


@pytest.mark.parametrize(
    ("environment", "limits"),
    [
        ({}, (60, 60)),
        ({"GAE_ENV": "standard"}, (60, 600)),
        ({"K_SERVICE": "site"}, (60, 60)),
        ({"K_SERVICE": "site", "USERLOCK_REQUEST_SECONDS": "30"}, (30, 30)),
        ({"K_SERVICE": "site", "CLOUD_RUN_TIMEOUT_SECONDS": "300"}, (300, 300)),
        ({"GAE_ENV": "standard", "USERLOCK_REQUEST_SECONDS": "0.5"}, (0.5, 0.5)),
    ],
)
def test_leases_are_as_long_as_requests(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], limits: tuple[float, float]
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert request_limits() == limits
    policy = LockService(MemoryStore()).policy
    assert (policy.interactive.lock_timeout, policy.batch.lock_timeout) == limits
    assert LockService(MemoryStore(), policy=LockPolicy()).policy == LockPolicy()


@pytest.mark.parametrize("text", ["-1", "0", "a minute", "nan", "1e3", "90000", "²"])
def test_a_limit_that_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("USERLOCK_REQUEST_SECONDS", text)
    with pytest.raises(ValueError, match="USERLOCK_REQUEST_SECONDS must be a number of sec"):
        LockService(MemoryStore())
