"""The command `python -m userlock_emulator start`: serving until a signal."""

import argparse
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from userlock_emulator.exports import exports, write_env_file
from userlock_emulator.google_options import GOOGLES_DATA, settle
from userlock_emulator.limits import Limits, limits_of
from userlock_emulator.messages_only import postpone_clients
from userlock_emulator.signals import StopSignal
from userlock_emulator.sockets import PortInUseError

# The line by which runners of Google's emulators know that it serves: its program prints it on
# standard output, and gcloud on standard error with the name before it.
_RUNNING = "Dev App Server is now running."

_log = logging.getLogger(__name__)


class StartError(Exception):
    """The emulator cannot serve. The text is one line."""


def serve(options: argparse.Namespace) -> None:
    """Serve with these options until SIGINT, SIGTERM or `POST /shutdown`.

    Raises:
        StartError: a port, the data folder or the index file cannot be used.
        OptionError: options contradict each other.
        EnvFileError: the data folder's env.yaml cannot be written.
    """
    settle(options)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Before the slow imports, so that an early signal also leads to a clean exit.
    stop = StopSignal()

    limits = limits_of(options)
    if options.tasks is None and (
        options.tasks_queue or options.app_engine or options.tasks_anywhere
    ):
        raise StartError("--tasks-queue, --app-engine and --tasks-anywhere need --tasks PORT")
    if options.env_dir and (options.env_dir / GOOGLES_DATA).exists():
        _log.warning(
            "%s is data of Google's emulator, which is not read; load an export of it instead",
            options.env_dir / GOOGLES_DATA,
        )
    postpone_clients()
    from userlock_emulator.datastore.server import DEFAULT_CONCURRENCY_MODE, start
    from userlock_emulator.port.status import StorageError

    with ExitStack() as running:
        try:
            with _chosen_by("--port"):
                datastore = start(
                    options.port,
                    options.data_dir,
                    host=options.host,
                    project=options.project,
                    concurrency_mode=options.concurrency_mode or DEFAULT_CONCURRENCY_MODE,
                    indexes=options.indexes or ("enforced" if options.index_file else "off"),
                    index_file=options.index_file,
                    edit=options.edit,
                    exports=options.exports,
                    limits=limits,
                )
            running.enter_context(datastore)
            # `POST /shutdown` stops the Datastore emulator first.
            threading.Thread(target=_after, args=(datastore.wait, stop.send), daemon=True).start()
            env = dict(datastore.env)
            if options.tasks is not None:
                env |= _tasks(options, limits, running)
        except StorageError as error:
            raise StartError(str(error)) from None
        if options.memcached is not None:
            env["MEMCACHED_HOSTS"] = _memcached(options.host, options.memcached, limits, running)
        if options.env_dir is not None:
            write_env_file(options.env_dir, datastore.env)
        _announce(env, datastore.viewer_url)
        stop.wait()


@contextmanager
def _chosen_by(option: str) -> Iterator[None]:
    """Name the options that choose another address, if this one cannot be used."""
    try:
        yield
    except PortInUseError as error:
        raise StartError(
            f"{error}; choose another by {option} PORT (0: any free one) or --host HOST"
        ) from None


def _after(wait: Callable[[], None], then: Callable[[], None]) -> None:
    wait()
    then()


def _announce(env: dict[str, str], viewer_url: str | None) -> None:
    """Print the variables, the address of the viewer, and that the emulator is running."""
    for line in exports(env, "bash"):
        print(line)
    if viewer_url is not None:
        print(f"# viewer: {viewer_url}")
    if not sys.stdout.isatty():  # on a terminal once is enough
        print(f"# {_RUNNING}")
    sys.stdout.flush()
    print(f"[datastore] {_RUNNING}", file=sys.stderr, flush=True)


def _memcached(host: str, port: int, limits: Limits, running: ExitStack) -> str:
    """Start the embedded memcached too, and return its address."""
    from userlock_emulator.memcache.server import start

    with _chosen_by("--memcached"):
        server = start(port, host, limits=limits)
    return running.enter_context(server).address


def _tasks(options: argparse.Namespace, limits: Limits, running: ExitStack) -> dict[str, str]:
    """Start the Cloud Tasks emulator too, and return its variables."""
    from userlock_emulator import tasks

    try:
        with _chosen_by("--tasks"):
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
