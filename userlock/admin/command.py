"""Commands, their parser and their console: exit codes, errors, arguments, the store's address.

A command is a function with the decorator `command`. Its docstring is its help.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TextIO

from userlock.admin.rendering import document
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.events import Listeners
from userlock.ids import NAMESPACE, are_plain
from userlock.lock.lease import check_lock_id
from userlock.lock.service import LockService
from userlock.lock.store import StoreUnavailable
from userlock.stores.urls import open_store, shown_url
from userlock.words import escaped

#: 70 is not 1, Python's own code: scripts would take that for an answer.
FINE, NO, USAGE, UNREACHABLE, BUG, INTERRUPTED, NO_READER = 0, 1, 2, 3, 70, 130, 141
NO_MEANS = "nobody holds it, nothing was done, something is wrong, new, late or left"
_EXIT_CODES = (
    "exit codes:",
    "  0    fine",
    "  1    the answer is no: {no}",
    "  2    the command line cannot be carried out",
    "  3    the store, or Datastore, cannot be reached",
    "  70   a bug in userlock, or the answer could not be written",
    "  130  interrupted",
    "  141  the reader of the output went away, as `head` does",
)
_EXAMPLE = "memcache://127.0.0.1:11211"
#: Arguments that may be repeated in an error: options, commands, numbers.
_HARMLESS = re.compile(r"[\w.-]{0,40}", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}

Connect = Callable[[str, Clock], LockService]


class CommandError(Exception):
    """Ends the command with a line for people and an exit code."""

    def __init__(self, message: str, exit_code: int = USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def connect(url: str, clock: Clock) -> LockService:
    store = open_store(url)
    if hasattr(store, "connect"):  # Datastore's
        with contextlib.suppress(StoreUnavailable):  # the first verb says why
            store.connect()
    return LockService(store, outage="fail", listeners=Listeners(), clock=clock)


class AnswerNotWritten(Exception):
    """Standard output takes no more text, as of a disk that is full."""


@dataclasses.dataclass
class Console:
    """The streams of a command, as in `sys`; the environment; the clock, also for waiting."""

    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    environ: Mapping[str, str]
    clock: Clock = SYSTEM_CLOCK

    @classmethod
    def of_process(cls) -> Console:
        for stream in (sys.stdout, sys.stderr):
            # A terminal that cannot show a character must not end the command.
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        # A stream is None where a process has none.
        streams = (sys.stdin or _null("r"), sys.stdout or _null("w"), sys.stderr or _null("w"))
        return cls(*streams, os.environ)

    def say(self, text: str) -> None:
        self.write(f"{text}\n")

    def write(self, text: str) -> None:
        try:
            self.stdout.write(text)
            self.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise AnswerNotWritten(error.strerror or str(error)) from error

    def note(self, text: str, *, end: str = "\n") -> None:
        """Write a remark that is not part of the answer."""
        self.stderr.write(text + end)
        self.stderr.flush()

    def check_can_ask(self, instead: str) -> None:
        if not self.stdin.isatty():
            raise CommandError(
                f"cannot ask: standard input is not a terminal. To fix it: pass {instead}"
            )

    def ask(self, question: str) -> str:
        self.note(question, end="")
        answer = self.stdin.readline()
        if not answer.endswith("\n"):
            self.note("")  # the input has ended
        return answer.strip()

    def agrees(self, question: str) -> bool:
        return self.ask(f"{question} [y/N] ").lower() in ("y", "yes")

    def document(self, facts: Mapping[str, Any]) -> None:
        """Write facts as JSON on one line of ASCII, harmless to a terminal."""
        self.say(json.dumps(document(facts), ensure_ascii=True, allow_nan=False))


def _null(mode: str) -> TextIO:
    return open(os.devnull, mode)  # type: ignore[return-value]  # noqa: PTH123


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one line, without what may be a misplaced store's URL.

    `fill` adds the arguments when the parser is first used.
    """

    fill: Callable[[Parser], None] | None = None
    _given: Sequence[str] = ()

    def __init__(self, **options: Any) -> None:
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=raw, allow_abbrev=False, **options)

    def load(self) -> None:
        if self.fill is not None:
            fill, self.fill = self.fill, None
            fill(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.load()
        self._given = list(sys.argv[1:] if args is None else args)
        found, rest = super().parse_known_args(args, namespace)
        if rest:  # here, and not by the parser above, whose options are others
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        for given in sorted(self._given, key=len, reverse=True):
            name, equals, value = given.partition("=")
            if equals and _HARMLESS.fullmatch(name):
                message = message.replace(given, f"{name}=…").replace(repr(value), "…")
            elif not _HARMLESS.fullmatch(given) or not (are_plain() or given.startswith("-")):
                message = message.replace(repr(given), "…").replace(given, "…")
        self.exit(USAGE, f"{self.prog}: {escaped(message)} (see {self.prog} --help)\n")


class Invocation:
    """The common options and the console of one command. `url`: the store's, without secrets."""

    def __init__(self, options: argparse.Namespace, console: Console, connect: Connect) -> None:
        self.console = console
        self.json: bool = getattr(options, "json", False)
        self._connect = connect
        named: str | None = getattr(options, "store", None)  # empty: of a script's unset variable
        self._url = console.environ.get("USERLOCK_STORE", "") if named is None else named
        self.url = shown_url(self._url)
        self.names_store = bool(self._url)

    def service(self) -> LockService:
        if not self._url:
            raise CommandError(
                f"no store is named. To fix it: pass --store URL, or set USERLOCK_STORE={_EXAMPLE}"
            )
        try:
            return self._connect(self._url, self.console.clock)
        except ImportError as error:
            raise CommandError(str(error)) from error
        except (ValueError, TypeError) as error:
            example = "" if "://" in self._url else f" (as in {_EXAMPLE})"
            raise CommandError(f"{error}{example}") from error

    def answer(self, document: Mapping[str, Any], *lines: str, no: bool = False) -> int:
        """Write the answer: the document for --json, else the lines. Return the exit code."""
        if self.json:
            self.console.document(document)
        elif lines:
            self.console.say("\n".join(lines))
        if document.get("interrupted"):  # counts more than the answer
            return INTERRUPTED
        return NO if no else FINE

    def progress(self, line: str) -> None:
        if not self.json:
            self.console.say(line)


#: Runs a command with its options and its invocation; with an app's object, if it is about one.
Run = Callable[..., int]
#: The names of an argument of a command, and the keywords with which argparse takes it.
Argument = tuple[tuple[str, ...], Mapping[str, Any]]


def argument(*names: str, **options: Any) -> Argument:
    return names, options


def option(
    name: str, metavar: str, meaning: str, convert: Callable[[str], Any] = str, default: Any = None
) -> Argument:
    """Return an option with a value; without a default, that of a text is empty."""
    default = "" if convert is str and default is None else default
    return argument(name, metavar=metavar, help=meaning, type=convert, default=default)


def flag(name: str, meaning: str) -> Argument:
    return argument(name, action="store_true", help=meaning)


@dataclasses.dataclass(frozen=True)
class Command:
    """A command, or an action of one, such as `list`."""

    name: str
    run: Run | None
    doc: str  # its help; the first line is the summary
    no: str = ""  # the meaning of exit code 1, if it has one
    arguments: tuple[Argument | list[Argument], ...] = ()  # those of a list exclude each other
    actions: tuple[Command, ...] = ()

    @property
    def summary(self) -> str:
        line = self.doc.partition("\n")[0].rstrip(".")
        return f"{line[0].lower()}{line[1:]}"

    def fill(self, parser: Parser) -> None:
        parser.description, _, details = self.doc.partition("\n\n")
        parser.epilog = f"{details}\n\n{exit_codes(self.no)}"
        add_common(parser)
        for each in self.arguments:
            if isinstance(each, list):
                group = parser.add_mutually_exclusive_group()
                for names, options in each:
                    group.add_argument(*names, **options)
            else:
                parser.add_argument(*each[0], **each[1])
        if self.actions:
            actions = parser.add_subparsers(
                title="actions", dest="action", metavar="ACTION", parser_class=Parser, required=True
            )
            for action in self.actions:
                action.fill(actions.add_parser(action.name, help=action.summary))
        else:
            parser.set_defaults(run=self.run)


def command(
    *arguments: Argument | list[Argument], no: str = "", name: str = ""
) -> Callable[[Run], Command]:
    """Make a command of a function, with its name and its docstring."""

    def make(run: Run) -> Command:
        called = name or run.__name__.strip("_")
        return Command(called, run, inspect.cleandoc(run.__doc__ or called), no, arguments)

    return make


def exit_codes(no: str) -> str:
    return "\n".join(line.format(no=no) for line in _EXIT_CODES if no or "{no}" not in line)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command, which may also stand before its name."""
    parser.add_argument(
        "--store",
        metavar="URL",
        default=argparse.SUPPRESS,
        help=f"the lease store: {_EXAMPLE}?prefix=app1, redis://HOST:PORT/0, "
        "datastore://PROJECT (default: the environment variable USERLOCK_STORE)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print a JSON document on one line, and nothing else",
    )


def usable_lock_id(lock_id: str) -> str:
    try:
        return check_lock_id(lock_id)
    except ValueError as error:
        raise CommandError(str(error)) from error


def plain_reason(reason: str) -> str:
    """Return a store's reason without error numbers, safe for a terminal."""
    return re.sub(r"\[Errno -?\d+\] |Error -?\d+ connecting to \S+ ", "", escaped(reason))


def seconds(text: str) -> float:
    """Return the duration in an argument: seconds, or 90s, 5m, 1.5h, up to a day."""
    match = _DURATION.fullmatch(text)
    value = float(match[1]) * _UNITS[match[2]] if match is not None else -1.0
    if not 0.1 <= value <= 86400:
        says = f"{text!r} is not a duration from 0.1 seconds to a day, as in 90, 90s, 5m or 2h"
        raise argparse.ArgumentTypeError(says)
    return value


def number(noun: str, least: float, most: float, *, whole: bool = False) -> Callable[[str], Any]:
    """Return the type of an argument: a number in a range."""

    def convert(text: str) -> float:
        with contextlib.suppress(ValueError):
            value = int(text) if whole else float(text)
            if least <= value <= most:
                return value
        says = f"{text!r} is not a {noun} from {least:g} to {most:.15g}"
        raise argparse.ArgumentTypeError(says)

    return convert


def of_namespace(meaning: str) -> Argument:
    def checked(text: str) -> str:
        if NAMESPACE.fullmatch(text):
            return text
        says = f"{text!r:.110} is no namespace: up to 100 letters, digits, and . _ -"
        raise argparse.ArgumentTypeError(says)

    return option("--namespace", "NAME", meaning, checked)


def most(noun: str) -> Argument:
    number_of = number("number", 1, 1000, whole=True)
    return option("--most", "N", f"at most N {noun} (default: 100)", number_of, 100)
