"""Tell requests of an app's own pages from those of other sites, by the browser's headers.

A foreign page can make a browser send a form, with the user's cookies. Browsers report the origin
of a request, and pages cannot forge that: `Sec-Fetch-Site` on every request to a secure site or to
the same machine, `Origin` on every POST.
"""

from __future__ import annotations

from typing import Protocol
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


class Headers(Protocol):
    """The headers of a request, by names in any case."""

    def get(self, name: str, /) -> str | None:
        """Return a header, or None if it is missing."""


def is_of_this_site(headers: Headers, scheme: str, host: str) -> bool:
    """Return whether no other site sent a request.

    A request without any of the headers is not from a browser, so it carries no cookies to misuse.
    A malformed header refuses the request.

    Args:
        headers: the request's headers.
        scheme: the scheme of the request, as the app sees it. Behind a proxy that ends TLS, the
            app must take it from the proxy's header. Otherwise only browsers that send
            Sec-Fetch-Site are accepted.
        host: the host of the request, with its port unless that is the scheme's own.
    """
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        # "none": typed or bookmarked. "same-site" is another host of the same domain.
        return site in {"same-origin", "none"}
    origin = headers.get("Origin")
    if origin is None:
        origin = headers.get("Referer")
    if origin is None:
        return True
    own = _origin(f"{scheme}://{host}")
    return own is not None and _origin(origin) == own


def _origin(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of a URL, or None if it is malformed or has none."""
    if not url.isascii() or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname or "@" in parts.netloc:
        return None
    return parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port
