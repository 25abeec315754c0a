"""The command line of the emulators.

    userlock-emulator [start]       serve until SIGINT or SIGTERM
    userlock-emulator reset         delete all data of a running emulator
    userlock-emulator export DIR    write all entities into a folder
    userlock-emulator import DIR    store the entities of such a folder
    userlock-emulator env           print the environment variables for a shell

`python -m userlock_emulator` is the same.

`start` prints the environment variables when the emulator is serving. The first line is

    export DATASTORE_EMULATOR_HOST=127.0.0.1:8081

and the line that runners of Google's emulators wait for comes last, on both outputs.

Exit codes: 0 for success. 2, with one line on standard error, if the arguments, the port, a folder
or the running emulator cannot be used.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from userlock_emulator import dump, google_options, limits
from userlock_emulator._version import __version__
from userlock_emulator.exports import (
    SHELLS,
    TASKS_VARIABLES,
    UNSETTING,
    EnvFileError,
    datastore_variables,
    exports,
    read_env_file,
    tasks_variables,
)
from userlock_emulator.google_options import OptionError
from userlock_emulator.remote import Remote, RemoteError
from userlock_emulator.serve import StartError, serve

_COMMANDS = ("start", "reset", "export", "import", "env")
_USAGE_ERROR = 2
_MAX_PORT = 65535
_ADDRESS = "127.0.0.1"
_DEFAULT_PORT = 8081
_HOST_VARIABLE = "DATASTORE_EMULATOR_HOST"
_DEFAULT_HOST = f"{_ADDRESS}:{_DEFAULT_PORT}"


class _Parser(argparse.ArgumentParser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        if rest:  # here, and not by the parser above, whose options are others
            near = _meant(rest[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(rest)}{near}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE_ERROR, f"userlock-emulator: {message} (see {self.prog} --help)\n")


def _meant(name: str, known: Iterable[str]) -> str:
    """Return a question that names the known name that is nearest; empty if none is near."""
    near = difflib.get_close_matches(name[:40], list(known), 1)
    return f": did you mean {near[0]}?" if near else ""


def _port(text: str) -> int:
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port <= _MAX_PORT:
        raise argparse.ArgumentTypeError(f"not a port number: {text!r}")
    return port


def _program() -> str:
    """Return the program's name as it was called."""
    name = Path(sys.argv[0]).name
    return name if name == "userlock-emulator" else "python -m userlock_emulator"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=_program(), description="A Google Cloud Datastore emulator.")
    parser.add_argument("--version", action="version", version=f"userlock-emulator {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", help="default: start")
    _add_start(commands)

    def add(name: str, run: Callable[[argparse.Namespace], None], text: str) -> _Parser:
        command: _Parser = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "--host",
            metavar="HOST:PORT",
            default=os.environ.get(_HOST_VARIABLE) or _DEFAULT_HOST,
            help=f"the running emulator (default: ${_HOST_VARIABLE}, or {_DEFAULT_HOST})",
        )
        command.set_defaults(run=run)
        return command

    add("reset", _reset, "Delete all entities, end all transactions, remove all faults.")
    for name, run, text in (
        ("export", _export, "Write all entities into a new folder, as lines of JSON."),
        ("import", _import, "Store the entities of an export, replacing existing ones."),
    ):
        add(name, run, text).add_argument("folder", type=Path, metavar="DIR")
    env = add("env", _env, "Print the environment variables that send clients to the emulator.")
    _add_project(env)
    env.add_argument(
        "--tasks",
        metavar="HOST:PORT",
        default=next(filter(None, map(os.environ.get, TASKS_VARIABLES)), None),
        help="the running Cloud Tasks emulator"
        f" (default: ${' or $'.join(TASKS_VARIABLES)}, if it is set)",
    )
    env.add_argument(
        "--shell",
        choices=list(SHELLS),
        default="fish" if Path(os.environ.get("SHELL", "")).name == "fish" else "bash",
        help="the shell's syntax (default: the shell in $SHELL)",
    )
    env.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="print the variables of the emulator that was started with this data folder; --host"
        " and --project are not used",
    )
    env.add_argument(
        "--unset", action="store_true", help="print the commands that remove the variables"
    )
    return parser


def _add_start(commands: Any) -> None:
    text = "Serve until SIGINT or SIGTERM."
    parser = commands.add_parser("start", help=text, description=text)
    parser.set_defaults(run=serve)
    parser.add_argument("--host", default=_ADDRESS, help="address to bind (default: %(default)s)")
    parser.add_argument(
        "-p",
        "--port",
        type=_port,
        default=_DEFAULT_PORT,
        help="for gRPC and HTTP, 0 for any (default: %(default)s)",
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="keep the data in DIR (default: in memory)"
    )
    _add_project(parser)
    parser.add_argument(
        "--concurrency-mode",
        choices=["pessimistic", "optimistic", "optimistic-with-entity-groups"],
        help="concurrency control of transactions (default: pessimistic)",
    )
    parser.add_argument(
        "--index-file", type=Path, metavar="FILE", help="the index.yaml (default: none)"
    )
    parser.add_argument(
        "--indexes",
        choices=["off", "enforced", "auto"],
        help="off: no query needs a composite index; enforced: a query is refused unless its index"
        " is in the index file; auto: its index is added there (default: enforced with an index"
        " file, otherwise off)",
    )
    parser.add_argument(
        "--edit",
        action="store_true",
        help="the viewer's pages, for browsers on this machine, may change data (default: not)",
    )
    parser.add_argument(
        "--exports",
        type=Path,
        metavar="DIR",
        help="the folders in it are the buckets of gs://BUCKET/PATH for exports and imports of the "
        "admin API (default: no buckets, but any folder)",
    )
    parser.add_argument(
        "--memcached",
        type=_port,
        metavar="PORT",
        help="serve the embedded memcached too, 0 for any port (default: do not)",
    )
    _add_tasks(parser)
    limits.add_arguments(parser, threads=True)
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="warning",
        help="log level; debug logs each RPC with its cost (default: %(default)s)",
    )
    google_options.add_arguments(parser)


def _add_tasks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tasks",
        type=_port,
        metavar="PORT",
        help="serve Cloud Tasks too, 0 for any port (default: do not)",
    )
    parser.add_argument(
        "--tasks-queue",
        action="append",
        default=[],
        metavar="NAME[,SETTING=VALUE…]",
        help="a queue that exists from the start: projects/P/locations/L/queues/Q, with settings as"
        " in `gcloud tasks queues create`: max-attempts=3,min-backoff=1s; may be repeated",
    )
    parser.add_argument(
        "--app-engine",
        action="append",
        default=[],
        type=_service,
        metavar="[SERVICE=]HOST:PORT",
        help="where the tasks for App Engine are dispatched to; may be repeated",
    )
    parser.add_argument(
        "--tasks-anywhere",
        action="store_true",
        help="dispatch tasks to other machines too (default: to this one only)",
    )


def _service(text: str) -> tuple[str, str]:
    """Return the name of an App Engine service, or "", and its address."""
    service, _, address = text.rpartition("=")
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or "/" in address:
        raise argparse.ArgumentTypeError(f"not [SERVICE=]HOST:PORT: {text[:100]!r}")
    return service, address


def _add_project(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--project",
        default="emulator",
        help="project id in the printed variables; every project is served (default: %(default)s)",
    )


def _reset(options: argparse.Namespace) -> None:
    Remote(options.host).reset()


def _export(options: argparse.Namespace) -> None:
    count = dump.write(Remote(options.host).export(), options.folder)
    print(f"{_entities(count)} written to {options.folder}")


def _import(options: argparse.Namespace) -> None:
    count = Remote(options.host).load(dump.read(options.folder))
    print(f"{_entities(count)} read from {options.folder}")


def _entities(count: int) -> str:
    return "1 entity" if count == 1 else f"{count} entities"


def _env(options: argparse.Namespace) -> None:
    if options.data_dir is None:
        variables = datastore_variables(options.host, options.project)
    else:
        variables = read_env_file(options.data_dir)
    if options.tasks:
        variables |= tasks_variables(options.tasks)
    lines = exports(variables, options.shell)
    if options.unset:
        lines = (UNSETTING[options.shell].format(name) for name in variables)
    for line in lines:
        print(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code. Exits directly on wrong arguments."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or (given[0].startswith("-") and given[0] not in ("-h", "--help", "--version")):
        given.insert(0, "start")
    if given[0] == "start":
        given = list(google_options.spelled(given))
    parser = _parser()
    if given[0] not in _COMMANDS and not given[0].startswith("-"):
        parser.error(f"no command is called {given[0][:40]}{_meant(given[0], _COMMANDS)}")
    options = parser.parse_args(given)
    try:
        options.run(options)
        sys.stdout.flush()
    except (StartError, RemoteError, OptionError, EnvFileError, dump.DumpError) as error:
        print(f"userlock-emulator: {error}", file=sys.stderr)
        return _USAGE_ERROR
    except OSError as error:  # of the output: a closed pipe, a full disk
        # Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"userlock-emulator: cannot write the output: {error.strerror}", file=sys.stderr)
        return _USAGE_ERROR
    return 0
