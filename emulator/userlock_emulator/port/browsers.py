"""Refusal of requests that a web page makes a browser send.

The emulator has no passwords, and a developer's browser can reach it. Without this check any page
could send it a form. A page could also point its own host name at the loopback address (DNS
rebinding) and read the emulator's responses as its own:

    page of evil.example ──▶ POST http://127.0.0.1:8081/reset      Origin: http://evil.example
    page of evil.example ──▶ evil.example resolves to 127.0.0.1    Host: evil.example:8081

Programs, and addresses typed into a browser, are not affected. Neither is gRPC: no browser opens an
HTTP/2 connection without TLS.

Pages for people, which a browser does show, are for this machine alone, whoever else can reach the
port: see `local_refusal`.
"""

import ipaddress
from email.message import Message
from urllib.parse import urlsplit

# The values of Sec-Fetch-Site for a request without another page behind it.
_OWN = ("same-origin", "none")
# A client behind a proxy may be anywhere.
_OF_PROXIES = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")


class Gate:
    """Recognises such requests by their headers.

    Args:
        host: the host name or address that the emulator was configured to listen on.
        open_to_others: other machines can reach it. Then names without a dot, as used inside one
            network, are accepted too; the public DNS has none.
    """

    def __init__(self, host: str, *, open_to_others: bool) -> None:
        self._host = _plain(host)
        self._open_to_others = open_to_others

    def refusal(self, headers: Message) -> str | None:
        """Return the reason to refuse a request with these headers, or None to accept it."""
        hosts = headers.get_all("Host", [])
        for host in hosts:
            if not self._is_here(host):
                return (
                    f"the Host {host!r} may be the name of a web site: use an address, localhost,"
                    " or the name that the emulator listens on (--host)"
                )
        own = [f"http://{host}".lower() for host in hosts]
        for origin in headers.get_all("Origin", []):
            if origin.lower() not in own:
                return f"a page of another site sent this: {origin!r}"
        for site in headers.get_all("Sec-Fetch-Site", []):
            if site not in _OWN:
                return f"a page of another site sent this: {site!r}"
        return None

    def _is_here(self, host: str) -> bool:
        try:
            address = urlsplit(f"//{host}")
            name = _plain(address.hostname or "")
            _ = address.port
        except ValueError:  # of the port, too
            return False
        if name in ("localhost", self._host) or name.endswith(".localhost"):
            return True
        try:
            # A name can be made to resolve to another machine. An address cannot.
            ipaddress.ip_address(name)
        except ValueError:
            return self._open_to_others and "." not in name
        return True


def local_refusal(method: str, headers: Message, peer: str) -> str | None:
    """Return the reason to refuse a request for a page of this machine's, or None to accept it.

    Args:
        method: the request's method.
        headers: its headers, which a `Gate` has accepted.
        peer: the address of the client.
    """
    if not _is_loopback(peer):
        return f"this page is for this machine only, not for {peer or 'an unknown address'}"
    for name in _OF_PROXIES:
        if name in headers:
            return f"this page is for this machine only: a proxy has sent this ({name})"
    hosts = headers.get_all("Host", [])
    if len(hosts) != 1 or not _names_loopback(hosts[0]):
        return "this page is for this machine only: ask for it at localhost or 127.0.0.1"
    # The gate has checked what these say. With a form, every browser sends one of them.
    of_page = "Origin" in headers or headers.get("Sec-Fetch-Site") == "same-origin"
    if method not in ("GET", "HEAD") and not of_page:
        return "no page of the emulator sent this: it has neither Origin nor Sec-Fetch-Site"
    return None


def _is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def _names_loopback(host: str) -> bool:
    try:
        name = _plain(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(name)


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")
