"""Addresses of memcached servers in URLs and settings."""

from __future__ import annotations

import re
import ssl
from typing import Any
from urllib.parse import SplitResult

from userlock.stores.address import joined
from userlock.stores.urls import YES_NO, AddressError, options_of

_FORMS = {"protocol": ("(meta|text)?", "meta or text"), "via_proxy": YES_NO}


def parse(parts: SplitResult) -> tuple[list[str], dict[str, Any]]:
    """Return the servers, and the options of their stores, that a URL names.

    `memcache://HOST:PORT,…?prefix=NAME&via_proxy=no&protocol=meta`;
    `memcaches://…?ca=FILE&cert=FILE&key=FILE` is the same over TLS;
    `memcache:///run/memcached.sock` names a socket in the file system.
    """
    if "@" in parts.netloc:
        raise AddressError(
            "a memcache:// URL has no user and password: there are none to log in with"
        )
    secure = parts.scheme == "memcaches"
    files = {"ca": "", "cert": "", "key": ""} if secure else {}
    options = options_of(
        parts, forms=_FORMS, prefix="userlock", via_proxy="no", protocol="", **files
    )
    path = parts.path.strip("/")
    addresses = [parts.path] if path and not parts.netloc else parts.netloc.split(",")
    if not all(addresses) or (path and parts.netloc):
        raise AddressError(f"it must look like {parts.scheme}://HOST:PORT?prefix=NAME")
    if "," in path:
        raise AddressError("it names several sockets: leases are kept on one of them")
    if secure and path:
        raise AddressError("a socket in the file system has no TLS: use memcache:///PATH")
    return addresses, {
        "prefix": options["prefix"],
        "via_proxy": options["via_proxy"] == "yes",
        "protocol": options["protocol"] or None,
        "tls": _tls(**{name: options[name] for name in files}) if secure else None,
    }


def _tls(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Return how to check the server's certificate, and the one to show, if there is any."""
    if key and not cert:
        raise AddressError("key= is the key of cert=, which is missing")
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError):
        words = "ca= must be a readable file with certificates of authorities (PEM)"
        raise AddressError(words) from None
    try:
        if cert:
            context.load_cert_chain(cert, key or None)
    except (OSError, ssl.SSLError):
        words = "cert= and key= must be readable files with a certificate and its key (PEM)"
        raise AddressError(words) from None
    return context


def shard_name(address: str) -> str:
    """Return the name by which all processes spread locks over servers."""
    host, port = split_address(address)
    return joined("127.0.0.1" if host == "localhost" else host.rstrip("."), port)


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
