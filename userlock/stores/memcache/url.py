"""Addresses of memcached servers in URLs and settings."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from userlock.stores.options import options_of


class Named(NamedTuple):
    """The parts of a URL."""

    addresses: list[str]
    prefix: str
    via_proxy: bool
    protocol: str | None


def parse_url(url: str) -> Named:
    """Parse `memcache://HOST:PORT,…?prefix=NAME&via_proxy=no&protocol=meta`; or `ValueError`."""
    parts = urlsplit(url)
    if "@" in parts.netloc:  # a password is not shown
        raise ValueError(
            "a memcache:// URL has no user and password: there are none to log in with"
        )
    options = options_of(parts, url, prefix="userlock", via_proxy="no", protocol="")
    if options["protocol"] not in ("", "meta", "text"):
        raise ValueError(f"{url!r}: protocol is meta or text, not {options['protocol']!r}")
    if options["via_proxy"] not in ("yes", "no"):
        raise ValueError(f"{url!r}: via_proxy is yes or no, not {options['via_proxy']!r}")
    addresses = parts.netloc.split(",")
    if not all(addresses) or parts.path.strip("/"):
        raise ValueError(f"{url!r} must look like memcache://HOST:PORT?prefix=NAME")
    via_proxy = options["via_proxy"] == "yes"
    return Named(addresses, options["prefix"], via_proxy, options["protocol"] or None)


def shard_name(address: str) -> str:
    """Return the name by which all processes spread locks over servers."""
    host, port = split_address(address)
    host = "127.0.0.1" if host == "localhost" else host.rstrip(".")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Return `host`, `host:port` or `[v6]:port` as a pair; `ValueError` if malformed.

    In small letters, so that all processes that name this host spread locks alike.
    """
    match = re.fullmatch(
        r"\[([0-9a-f:.]+)\](?::([0-9]+))?|([^:\[\]/\s]+)(?::([0-9]+))?", address.lower()
    )
    if match is None:
        raise ValueError(f"{address!r} is not a memcached address: use HOST:PORT")
    host = match[1] or match[3]
    port = int(match[2] or match[4] or 11211)
    if not 0 < port < 65536:
        raise ValueError(f"{address!r} is not a memcached address: port {port} does not exist")
    return host, port
