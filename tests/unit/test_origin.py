"""Test the comparison of origins: scheme, host and port, in the form of browsers alone."""

from __future__ import annotations

import pytest

from userlock.contrib.inspector.pages import is_of_this_site


@pytest.mark.parametrize("header", ["Origin", "Referer"])
@pytest.mark.parametrize(
    ("sent", "scheme", "host", "ours"),
    [
        ("http://site.example", "http", "site.example", True),
        ("http://site.example", "http", "SITE.example", True),
        ("http://site.example", "http", "site.example:80", True),
        ("https://site.example", "https", "site.example:443", True),
        ("http://site.example:8080", "http", "site.example:8080", True),
        ("http://[::1]:5000", "http", "[::1]:5000", True),
        ("https://site.example", "http", "site.example", False),
        ("http://site.example", "https", "site.example", False),
        ("http://site.example:443", "https", "site.example", False),
        ("http://site.example:81", "http", "site.example", False),
        ("http://site.example.evil", "http", "site.example", False),
        ("http://user@site.example", "http", "site.example", False),
        ("//site.example", "http", "site.example", False),
        ("site.example", "http", "site.example", False),
        ("file://site.example", "http", "site.example", False),
        ("null", "http", "site.example", False),
        ("", "http", "site.example", False),
        ("http://", "http", "", False),
        ("http://[", "http", "site.example", False),
        ("http://site.example:x", "http", "site.example", False),
        ("http://site.example:" + "9" * 5000, "http", "site.example", False),
        ("http://site.\texample", "http", "site.example", False),
        ("http://site.example\n", "http", "site.example", False),
        ("http://site.example, http://evil.example", "http", "site.example", False),
        ("http://s\u0131te.example", "http", "site.example", False),
    ],
)
def test_an_origin(header: str, sent: str, scheme: str, host: str, ours: bool) -> None:
    assert is_of_this_site({header: sent}, scheme, host) is ours


def test_what_the_browser_says_decides() -> None:
    for site, ours in (("same-origin", True), ("none", True), ("same-site", False), ("", False)):
        headers = {"Sec-Fetch-Site": site, "Origin": "https://site.example"}
        # Behind a proxy that ends TLS, the app may see http.
        assert is_of_this_site(headers, "http", "site.example") is ours


def test_no_browser() -> None:
    assert is_of_this_site({}, "http", "site.example")
