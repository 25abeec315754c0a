"""What a web page can make a browser send is refused.

The emulator asks nobody for a password, and a developer's browser can reach it. So a page
from anywhere could send it a form, or, by a name of its own that suddenly stands for the
loopback address (DNS rebinding), read its answers as those of its own site:

    page of evil.example ──▶ POST http://127.0.0.1:8081/reset    Origin: http://evil.example
    page of evil.example ──▶ evil.example is 127.0.0.1 by now    Host: evil.example:8081

Programs, and people who type the address, are not concerned. gRPC is not either: no browser
begins a connection as HTTP/2 does without TLS.
"""

import ipaddress
from email.message import Message
from urllib.parse import urlsplit

# What stands in Sec-Fetch-Site when no other page is behind a request.
_OWN = ("same-origin", "none")


class Gate:
    """Tells such requests by their headers.

    Args:
        told: the name or the address that the emulator was told to listen on.
        open_to_others: other machines can reach it. Then a name without a dot, as machines of
            one network have for each other, is taken too; there are none in the public DNS.
    """

    def __init__(self, told: str, *, open_to_others: bool) -> None:
        self._told = _plain(told)
        self._open_to_others = open_to_others

    def refusal(self, headers: Message) -> str | None:
        """Why a request with these headers is refused; None: it is not."""
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
            name = _plain(urlsplit(f"//{host}").hostname or "")
        except ValueError:
            return False
        if name in ("localhost", self._told) or name.endswith(".localhost"):
            return True
        try:
            # Names can be made to stand for another machine; addresses cannot.
            ipaddress.ip_address(name)
        except ValueError:
            return self._open_to_others and "." not in name
        return True


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")
