"""Tell requests of an app's own pages from those of other sites, by the browser's headers.

A foreign page can make a browser send a form, with the user's cookies. It cannot forge the headers
of the origin: `Sec-Fetch-Site` on every request to a secure site or to the same machine, `Origin`
on every POST.
"""

from __future__ import annotations

from typing import Protocol

_PORTS = {"http": ":80", "https": ":443"}


class Headers(Protocol):
    """The headers of a request, by names in any case."""

    def get(self, name: str, /) -> str | None: ...


def is_of_this_site(headers: Headers, scheme: str, host: str) -> bool:
    """Return whether no other site sent a request to a scheme and a host, as the app sees them.

    A request without these headers is not from a browser: it carries no cookies to misuse. A header
    in another form than that of browsers refuses the request. Behind a proxy that ends TLS, the app
    must take the scheme from the proxy's header; otherwise only browsers that send Sec-Fetch-Site
    are accepted.
    """
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        # "none": typed or bookmarked. "same-site" is another host of the same domain.
        return site in {"same-origin", "none"}
    # Browsers write it in lower case, without the scheme's own port.
    own = f"{scheme}://{host.lower()}".removesuffix(_PORTS.get(scheme, ""))
    origin, referer = headers.get("Origin"), headers.get("Referer")
    if origin is None and referer is not None:
        origin = own if f"{referer}/".startswith(f"{own}/") else ""
    return origin is None or bool(host and origin == own)
