"""Addresses of memcached servers in URLs and settings."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import SplitResult

from userlock.stores.urls import AddressError, options_of


class Named(NamedTuple):
    """The parts of a URL."""

    addresses: list[str]
    prefix: str
    via_proxy: bool
    protocol: str | None


def parse(parts: SplitResult) -> Named:
    """Return the parts of `memcache://HOST:PORT,…?prefix=NAME&via_proxy=no&protocol=meta`."""
    if "@" in parts.netloc:
        raise AddressError(
            "a memcache:// URL has no user and password: there are none to log in with"
        )
    options = options_of(parts, prefix="userlock", via_proxy="no", protocol="")
    if options["protocol"] not in ("", "meta", "text"):
        raise AddressError("protocol is meta or text")
    if options["via_proxy"] not in ("yes", "no"):
        raise AddressError("via_proxy is yes or no")
    addresses = parts.netloc.split(",")
    if not all(addresses) or parts.path.strip("/"):
        raise AddressError("it must look like memcache://HOST:PORT?prefix=NAME")
    via_proxy = options["via_proxy"] == "yes"
    return Named(addresses, options["prefix"], via_proxy, options["protocol"] or None)


def shard_name(address: str) -> str:
    """Return the name by which all processes spread locks over servers."""
    host, port = split_address(address)
    host = "127.0.0.1" if host == "localhost" else host.rstrip(".")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Return `host`, `host:port` or `[v6]:port` as a pair; `AddressError` if malformed.

    In small letters, so that all processes that name this host spread locks alike.
    """
    match = re.fullmatch(
        r"\[([0-9a-f:.]+)\](?::([0-9]+))?|([^:\[\]/\s]+)(?::([0-9]+))?", address.lower()
    )
    if match is None:
        raise AddressError("this is not a memcached address: use HOST:PORT")
    host = match[1] or match[3]
    port = int(match[2] or match[4] or 11211)
    if not 0 < port < 65536:
        raise AddressError("this is not a memcached address: its port does not exist (1 to 65535)")
    return host, port
