"""`python -m userlock_emulator.memcache`: serve until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from userlock_emulator import limits
from userlock_emulator.memcache.server import DEFAULT_HOST, DEFAULT_PORT, Server
from userlock_emulator.signals import StopSignal

_CANNOT_LISTEN = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal. Return 0 then, or 2 if the address cannot be bound."""
    parser = argparse.ArgumentParser(
        prog="python -m userlock_emulator.memcache",
        description="An embedded memcached for development; data is lost when it stops.",
    )
    parser.add_argument("--host", default=DEFAULT_HOST, help="default: %(default)s")
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help="0 picks a free port; default: %(default)s"
    )
    limits.add_arguments(parser, threads=False)
    options = parser.parse_args(arguments)
    try:
        server = Server(options.port, options.host, limits=limits.limits_of(options))
    except OSError as error:
        print(error, file=sys.stderr)
        return _CANNOT_LISTEN

    stop = StopSignal()
    with server:
        print(f"memcached (embedded) listening on {server.address}", flush=True)
        stop.wait()
    return 0


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port} is not between 0 and 65535")
    return port


if __name__ == "__main__":
    sys.exit(main())
