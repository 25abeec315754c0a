"""The command line of the Datastore emulator.

The first line on standard output, printed when the emulator is serving, is

    export DATASTORE_EMULATOR_HOST=127.0.0.1:8081

Exit codes: 0 after SIGINT or SIGTERM; 2, with one line on standard error, if the
arguments, the port or the data folder cannot be used.
"""

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

_USAGE_ERROR = 2
_MAX_PORT = 65535


def _port(text: str) -> int:
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port <= _MAX_PORT:
        raise argparse.ArgumentTypeError(f"not a port number: {text!r}")
    return port


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m emulator",
        description="A Google Cloud Datastore emulator.",
    )
    parser.add_argument("command", nargs="?", choices=["start"], default="start")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to bind (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=_port, default=8081, help="port, 0 for any (default: %(default)s)"
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="keep the data in DIR (default: in memory)"
    )
    parser.add_argument(
        "--concurrency-mode",
        choices=["pessimistic", "optimistic", "optimistic-with-entity-groups"],
        default="pessimistic",  # as in a new database
        help="what happens between transactions (default: %(default)s)",
    )
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="warning",
        help="on standard error (default: %(default)s)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the emulator until SIGINT or SIGTERM. Returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Before the slow imports, so that an early signal also ends in a clean exit.
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    from emulator.datastore.errors import StorageError
    from emulator.datastore.server import PortInUseError, start

    try:
        emulator = start(
            options.port,
            options.data_dir,
            host=options.host,
            concurrency_mode=options.concurrency_mode,
        )
    except (PortInUseError, StorageError, ValueError) as error:
        print(f"emulator: {error}", file=sys.stderr)
        return _USAGE_ERROR
    with emulator:
        print(f"export DATASTORE_EMULATOR_HOST={emulator.host}", flush=True)
        stop.wait()
    return 0
