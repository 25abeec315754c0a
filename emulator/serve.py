"""The command `python -m emulator start`: serving until a signal."""

import argparse
import logging
import signal
import threading
from contextlib import ExitStack

from emulator.exports import exports
from emulator.limits import Limits, limits_of


class StartError(Exception):
    """The emulator cannot serve. The text is one line."""


def serve(options: argparse.Namespace) -> None:
    """Serve with these options until SIGINT or SIGTERM.

    Raises:
        StartError: a port, the data folder or the index file cannot be used.
    """
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Before the slow imports, so that an early signal also leads to a clean exit.
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    limits = limits_of(options)
    if options.tasks is None and (
        options.tasks_queue or options.app_engine or options.tasks_anywhere
    ):
        raise StartError("--tasks-queue, --app-engine and --tasks-anywhere need --tasks PORT")
    from emulator.datastore.server import start
    from emulator.port.server import PortInUseError
    from emulator.port.status import StorageError

    with ExitStack() as running:
        try:
            datastore = running.enter_context(
                start(
                    options.port,
                    options.data_dir,
                    host=options.host,
                    project=options.project,
                    concurrency_mode=options.concurrency_mode,
                    indexes=options.indexes or ("enforced" if options.index_file else "off"),
                    index_file=options.index_file,
                    limits=limits,
                )
            )
            env = dict(datastore.env)
            if options.tasks is not None:
                env |= _tasks(options, limits, running)
        except (PortInUseError, StorageError) as error:
            raise StartError(str(error)) from None
        if options.memcached is not None:
            env["MEMCACHED_HOSTS"] = _memcached(options.host, options.memcached, limits, running)
        for line in exports(env, "bash"):
            print(line)
        print(end="", flush=True)
        stop.wait()


def _memcached(host: str, port: int, limits: Limits, running: ExitStack) -> str:
    """Start the embedded memcached too, and return its address."""
    from emulator.memcache.server import start

    try:
        return running.enter_context(start(port, host, limits=limits)).address
    except OSError as error:
        reason = error.strerror or error
        raise StartError(f"cannot listen on {host}:{port}: {reason}") from None


def _tasks(options: argparse.Namespace, limits: Limits, running: ExitStack) -> dict[str, str]:
    """Start the Cloud Tasks emulator too, and return its variables."""
    from emulator import tasks

    try:
        server = tasks.start(
            options.tasks,
            options.data_dir,
            host=options.host,
            queues=options.tasks_queue,
            app_engine=dict(options.app_engine),
            anywhere=options.tasks_anywhere,
            limits=limits,
        )
    except ImportError as error:
        raise StartError(f"--tasks: {error}") from None
    except ValueError as error:
        raise StartError(f"--tasks-queue: {error}") from None
    return running.enter_context(server).env
