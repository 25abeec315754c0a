"""Choose the command, run it, and return its exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from types import ModuleType

import userlock.ids as ids
from userlock._version import __version__
from userlock.cli import (
    baseline,
    break_lock,
    completion,
    doctor,
    flows,
    holder,
    outbox,
    quota,
    reap,
    unique,
    watch,
)
from userlock.cli.command import (
    BUG,
    INTERRUPTED,
    NO_MEANS,
    NO_READER,
    USAGE,
    CommandError,
    Connect,
    Invocation,
    Parser,
    add_common,
    connect,
    exit_codes,
    misspelt_variables,
)
from userlock.cli.console import Console
from userlock.words import escaped

#: The environment variable with the form of lock ids, as in `userlock.configure(show_ids=…)`.
SHOW_IDS = "USERLOCK_SHOW_IDS"

COMMANDS: tuple[ModuleType, ...] = (
    holder,
    break_lock,
    watch,
    doctor,
    baseline,
    outbox,
    flows,
    reap,
    unique,
    quota,
    completion,
)


def main(
    arguments: Sequence[str] | None = None,
    *,
    console: Console | None = None,
    connect: Connect = connect,
) -> int:
    """Run one command. Return the exit code.

    Args:
        arguments: the arguments after the program's name; by default those of the process.
        console: the console; by default that of the process.
        connect: makes the lock service from the store's address.
    """
    console = console or Console.of_process()
    _silence_libraries()
    environ = console.environ
    try:
        form = ids.form_of(environ.get(SHOW_IDS) or "plain", environ.get(ids.KEY_VARIABLE, ""))
    except ValueError as error:
        console.note(f"userlock: {SHOW_IDS}: {error}")
        return USAGE
    before = ids.use(form)
    for line in misspelt_variables(environ):
        console.note(f"userlock: {line}")
    try:
        code = _run(arguments, console, connect)
        console.stdout.flush()
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            console.note("")  # past the ^C that the terminal shows
        return INTERRUPTED
    except BrokenPipeError:
        # Otherwise Python would complain again when it flushes at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), console.stdout.fileno())
        return NO_READER
    except OSError as error:
        console.note(f"userlock: cannot write the answer: {error.strerror or error}")
        return BUG
    except Exception:
        console.note(f"userlock: this is a bug in userlock:\n{traceback.format_exc()}")
        return BUG
    finally:
        ids.use(before)
    return code


def _run(arguments: Sequence[str] | None, console: Console, connect: Connect) -> int:
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as end:  # after --help, or an error in the command line
        return end.code if isinstance(end.code, int) else USAGE
    if options.command is None:
        names = ", ".join(module.NAME for module in COMMANDS)
        console.note(f"userlock: no command is given. Choose from: {names} (see userlock --help)")
        return USAGE
    invocation = Invocation(options, console, connect)
    try:
        code: int = options.run(options, invocation)
    except CommandError as error:
        message = escaped(str(error))
        if invocation.json:
            console.document({"error": message})
        prefix = console.paint_note(f"userlock {options.command}:", "wrong")
        console.note(f"{prefix} {message}")
        return error.exit_code
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="userlock",
        description="Show and break locks, check their server, repair the outbox and requests.",
        epilog="Every command takes --store and --json. "
        f"`userlock COMMAND --help` shows the other options.\n\n{exit_codes(NO_MEANS)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"userlock {__version__}")
    add_common(parser)
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", parser_class=Parser
    )
    for module in COMMANDS:
        command = commands.add_parser(
            module.NAME,
            help=module.SUMMARY,
            description=f"{module.SUMMARY[0].upper()}{module.SUMMARY[1:]}.",
            epilog=f"{module.DETAILS}\n{exit_codes(module.NO_MEANS)}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add_common(command)
        module.add_arguments(command)
        command.set_defaults(run=module.run, parser=parser)
    return parser


def _silence_libraries() -> None:
    """Keep libraries from writing between the lines of an answer."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
