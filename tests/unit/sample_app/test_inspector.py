"""Test the inspector of the sample app: for this machine, and no page elsewhere."""

from __future__ import annotations

import pytest

from tests.unit.sample_app.conftest import OpenSite

PAGE = "/userlock/locks.json"


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        ({}, "192.0.2.1"),
        ({"X-Forwarded-For": "127.0.0.1"}, "127.0.0.1"),
        ({"Forwarded": "for=127.0.0.1"}, "127.0.0.1"),
        # A foreign name that resolves to this machine.
        ({"Host": "evil.example:5000"}, "127.0.0.1"),
        ({"Host": "localhost.evil.example"}, "127.0.0.1"),
    ],
)
def test_nobody_else_does(open_site: OpenSite, headers: dict[str, str], address: str) -> None:
    client = open_site(INSPECTOR=True).client
    answer = client.get(PAGE, headers=headers, environ_base={"REMOTE_ADDR": address})
    assert answer.status_code == 403


def test_unless_it_is_asked_for_it_is_not_there(open_site: OpenSite) -> None:
    assert open_site().client.get(PAGE).status_code == 404
