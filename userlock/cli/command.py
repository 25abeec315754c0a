"""Parts that all commands share: exit codes, errors, the store's address."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable
from typing import NoReturn
from urllib.parse import urlsplit, urlunsplit

from userlock.cli.console import Console, shown
from userlock.clock import Clock
from userlock.events import Listeners
from userlock.lock.lease import check_lock_id
from userlock.lock.registry import open_store
from userlock.lock.service import LockService

FINE = 0
#: The answer is no: nobody holds it, nothing was broken, something is wrong, something is new.
NO = 1
NO_MEANS = "nobody holds it, nothing was broken, something is wrong, something is new"
USAGE = 2
#: The store cannot be reached.
UNREACHABLE = 3
#: A mistake of ours. Not 1, which is Python's own: scripts would take that for an answer.
BUG = 70
INTERRUPTED = 130
#: Whoever read what we write has gone, as `head` does.
NO_READER = 141

_EXIT_CODES = (
    "exit codes:",
    "  0    fine",
    "  1    the answer is no: {no}",
    "  2    the command line cannot be carried out",
    "  3    the store cannot be reached",
    "  70   a bug in userlock, or the answer could not be written",
    "  130  interrupted",
    "  141  the reader of the output went away, as `head` does",
)

_EXAMPLE = "memcache://127.0.0.1:11211"

Connect = Callable[[str, Clock], LockService]


class CommandError(Exception):
    """Ends the command with one line for people, and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def connect(url: str, clock: Clock) -> LockService:
    """Return a service over the store that a URL names, which tells nobody what happens."""
    return LockService(open_store(url), outage="fail", listeners=Listeners(), clock=clock)


def exit_codes(no: str) -> str:
    """Return the exit codes, for a help text; `no` says what 1 means there, if it can happen."""
    return "\n".join(line.format(no=no) for line in _EXIT_CODES if no or "{no}" not in line)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, not with the whole usage before it."""

    def error(self, message: str) -> NoReturn:
        match = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if match is not None:
            known = re.findall(r"'([^']*)'", match[2])
            near = difflib.get_close_matches(match[1], known, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            message = f"there is no {match[1]!r}{meant} There are: {', '.join(known)}"
        self.exit(USAGE, f"{self.prog}: {shown(message)} (see {self.prog} --help)\n")


def add_common(parser: argparse.ArgumentParser) -> None:
    """Return the options of every command, which may also stand before its name."""
    parser.add_argument(
        "--store",
        metavar="URL",
        default=argparse.SUPPRESS,
        help=f"where the locks are: {_EXAMPLE}?prefix=app1, redis://HOST:PORT/0, "
        "datastore://PROJECT; default: the environment's USERLOCK_STORE",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="answer with a JSON document on one line, and nothing else",
    )


def add_lock_id(parser: argparse.ArgumentParser) -> None:
    """Return the lock that the command is about."""
    parser.add_argument(
        "lock_id",
        metavar="ID",
        help="the lock id, just as the program has it; put -- before one that begins with a dash",
    )


class Setting:
    """The common options and the environment of one command.

    Attributes:
        console: where to read and write.
        url: the store's address, without its password: for people.
        json: whether to answer in JSON.
    """

    def __init__(self, options: argparse.Namespace, console: Console, connect: Connect) -> None:
        self.console = console
        self.json: bool = getattr(options, "json", False)
        self._connect = connect
        self._url: str = getattr(options, "store", "") or console.environ.get("USERLOCK_STORE", "")
        self.url = shown(without_password(self._url))

    def service(self) -> LockService:
        """Return the lock service over the store."""
        if not self._url:
            raise CommandError(
                f"which store? Say --store URL, or set USERLOCK_STORE, as in "
                f"USERLOCK_STORE={_EXAMPLE}",
                USAGE,
            )
        try:
            return self._connect(self._url, self.console.clock)
        except ImportError as error:
            raise CommandError(str(error), USAGE) from error
        except (ValueError, TypeError) as error:
            said = str(error).replace(self._url, self.url)
            example = "" if "://" in self._url else f" (as in {_EXAMPLE})"
            raise CommandError(f"{said}{example}", USAGE) from error


def usable_lock_id(lock_id: str) -> str:
    """Return the lock id as given, if it can be one."""
    try:
        return check_lock_id(lock_id)
    except ValueError as error:
        raise CommandError(str(error), USAGE) from error


def unreachable(reason: str) -> CommandError:
    """The store does not answer."""
    return CommandError(f"the store does not answer: {plain_reason(reason)}", UNREACHABLE)


def plain_reason(reason: str) -> str:
    """Return the reason that a store gives, without the numbers that mean nothing to people."""
    return re.sub(r"\[Errno -?\d+\] |Error -?\d+ connecting to \S+ ", "", shown(reason))


def without_password(url: str) -> str:
    """Return an address that may be shown."""
    try:
        parts = urlsplit(url)
        if "@" not in parts.netloc:
            return url
        return urlunsplit(parts._replace(netloc="***@" + parts.netloc.rpartition("@")[2]))
    except ValueError:
        return re.sub(r"//.*@", "//***@", url)


def seconds(text: str) -> float:
    """Return a length of time on the command line."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 86400")
    return value
