"""The listening sockets of a process and its children, from the kernel."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
LISTENS = "0A"


def listening(pid: int) -> set[tuple[str, int]]:
    """Return the addresses and ports of all TCP sockets that a process or descendant listens on."""
    table = _table(pid)
    return {table[inode] for each in _family(pid) for inode in _inodes(each) if inode in table}


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in (PROC / str(pid) / "task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _family(int(child))


def _inodes(pid: int) -> Iterator[str]:
    for each in (PROC / str(pid) / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            yield str(each.readlink()).removeprefix("socket:[").removesuffix("]")


def _table(pid: int) -> dict[str, tuple[str, int]]:
    found = {}
    for name in ("tcp", "tcp6"):
        lines = (PROC / str(pid) / "net" / name).read_text().splitlines()[1:]
        for words in map(str.split, lines):
            address, port = words[1].split(":")
            if words[3] == LISTENS:
                found[words[9]] = (_address(address), int(port, 16))
    return found


def _address(digits: str) -> str:
    """Parse the kernel's form of an address: numbers of 32 bits, in the machine's own order."""
    raw = bytes.fromhex(digits)
    words = struct.unpack(f">{len(raw) // 4}I", raw)
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def beyond_loopback(pid: int) -> set[tuple[str, int]]:
    """Return the addresses that other machines can reach."""
    return {each for each in listening(pid) if not _is_loopback(each[0])}


def _is_loopback(address: str) -> bool:
    # gRPC listens with IPv6 sockets, on addresses like ::ffff:127.0.0.1.
    return ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback
