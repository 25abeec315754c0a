"""Run the command line: choose a command of `userlock.admin`, run it, return its exit code."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence

import userlock.ids as ids
from userlock._version import __version__
from userlock.admin import command
from userlock.admin.command import Command, CommandError, Console, Invocation, Parser
from userlock.errors import LockServiceUnavailable
from userlock.lock.store import StoreUnavailable
from userlock.words import escaped

#: The commands: the module of each, which is loaded when it is called, and its purpose.
COMMANDS = {
    "locks": ("locks", "list the locks, the longest wait first"),
    "holder": ("locks", "show the holder of a lock, its remaining lease, and the queue"),
    "break": ("locks", "end the lease of a lock whose holder hangs"),
    "doctor": ("health", "check the server that keeps the locks"),
    "baseline": ("baseline", "write or check a file of put sites known not to hold their lock"),
    "outbox": ("jobs", "show jobs of the outbox, relay and run them, redrive and purge dead ones"),
    "flows": ("requests", "show requests with an idempotency key, complete unfinished ones"),
    "reap": ("requests", "remove answers of requests that are no longer kept"),
    "unique": ("constraints", "compare entities with claims of their unique values, repair those"),
    "quota": ("constraints", "check the flags of a quota, and count again"),
}


def command_of(name: str) -> Command:
    module = importlib.import_module(f"userlock.admin.{COMMANDS[name][0]}")
    found: Command = getattr(module, "break_" if name == "break" else name)
    return found


def main(
    arguments: Sequence[str] | None = None,
    *,
    console: Console | None = None,
    connect: command.Connect = command.connect,
) -> int:
    """Run one command, by default of this process's arguments. Return the exit code."""
    console = console or Console.of_process()
    # Libraries write nothing between the lines of an answer.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    environ = console.environ
    try:
        show = environ.get("USERLOCK_SHOW_IDS") or "plain"
        form = ids.form_of(show, environ.get(ids.KEY_VARIABLE, ""))
    except ValueError as error:
        console.note(f"userlock: USERLOCK_SHOW_IDS: {error}")
        return command.USAGE
    before = ids.use(form)
    try:
        code = _run(arguments, console, connect)
        console.write("")  # what argparse has written goes out
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            console.note("")  # past the ^C that the terminal shows
        return command.INTERRUPTED
    except BrokenPipeError:
        # Otherwise Python would complain again when it flushes at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), console.stdout.fileno())
        return command.NO_READER
    except command.AnswerNotWritten as error:
        console.note(f"userlock: cannot write the answer: {error}")
        return command.BUG
    except Exception:
        console.note(f"userlock: this is a bug in userlock:\n{traceback.format_exc()}")
        return command.BUG
    finally:
        ids.use(before)
    return code


def _run(arguments: Sequence[str] | None, console: Console, connect: command.Connect) -> int:
    try:
        options = parser(whole=False).parse_args(arguments)
    except SystemExit as end:  # after --help, or an error in the command line
        return end.code if isinstance(end.code, int) else command.USAGE
    invocation = Invocation(options, console, connect)
    try:
        code: int = options.run(options, invocation)
        return code
    except CommandError as error:
        failure = error
    except (LockServiceUnavailable, StoreUnavailable) as error:
        says = f"the store does not answer: {command.plain_reason(error.reason)}"
        failure = CommandError(says, command.UNREACHABLE)
    message = escaped(str(failure))
    if invocation.json:
        console.document({"error": message})
    console.note(f"userlock {options.command}: {message}")
    return failure.exit_code


def parser(*, whole: bool = True) -> Parser:
    """Return the parser, also for shtab. If not `whole`, those of commands are filled when used."""
    codes = command.exit_codes(command.NO_MEANS)
    parser = Parser(
        prog="userlock",
        description="Show and break locks, check their server, repair the outbox and requests.",
        epilog="Every command takes --store and --json. "
        f"`userlock COMMAND --help` shows the other options.\n\n{codes}",
    )
    parser.add_argument("--version", action="version", version=f"userlock {__version__}")
    command.add_common(parser)
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", parser_class=Parser, required=True
    )
    for name, (_, summary) in COMMANDS.items():
        below = commands.add_parser(name, help=summary)
        below.fill = functools.partial(lambda name, to: command_of(name).fill(to), name)
        if whole:
            below.load()
    return parser
