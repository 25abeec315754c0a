"""Find an app's object for a command, and turn errors into those of the command line."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import signal
import threading
from collections.abc import Callable, Hashable, Iterator
from types import FrameType
from typing import Any, Generic, TextIO, TypeVar

import userlock.apps as apps
import userlock.ids as ids
from userlock.admin import command as cli
from userlock.admin.command import Command, CommandError, Invocation
from userlock.errors import ConfigurationError, LockTimeout, NoService
from userlock.events import LISTENERS, Event, JobRan, RequestServed
from userlock.lock.configuration import configure, defaults
from userlock.ndb.client import DATASTORE_ERRORS
from userlock.words import escaped, legible, text_of

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class AppObject(Generic[_T]):
    """An object of the app that commands work with."""

    noun: str
    title: str  # its class, for people
    kind: type[_T]
    context: Callable[[_T], contextlib.AbstractContextManager[object]]  # an ndb context for it
    find: Callable[[str], _T] | None = None  # by a name that may be one of another class
    same: Callable[[_T], Hashable] = id  # its result is equal for objects of which any will do

    @property
    def variable(self) -> str:
        return apps.variable_of(self.noun)

    @property
    def argument(self) -> cli.Argument:
        return cli.argument(
            "--app",
            metavar="MODULE:ATTRIBUTE",
            default=argparse.SUPPRESS,
            help=f"the {self.noun}, as in main:{self.noun} (default: {self.variable} of the "
            f"environment, or the only one of the app in {apps.VARIABLE})",
        )

    def command(self, action: Command) -> Command:
        def run(options: argparse.Namespace, invocation: Invocation) -> int:
            with self._opened(options, invocation) as found:
                return action.run(options, invocation, found) if action.run else cli.FINE

        return dataclasses.replace(action, run=run, arguments=(*action.arguments, self.argument))

    def group(self, name: str, summary: str, more: str, no: str, *actions: Command) -> Command:
        """Return a command with actions, each of which is given the object."""
        doc = f"""{summary}

The app's {self.title} is named by --app MODULE:ATTRIBUTE or
{self.variable} of the environment, or is the only one of the app in {apps.VARIABLE};
its module is imported from the current directory. {more}

Every action has --help. USERLOCK_SHOW_IDS=masked or hashed hides ids, keys and values."""
        return Command(name, None, doc, no, (self.argument,), tuple(map(self.command, actions)))

    @contextlib.contextmanager
    def _opened(self, options: argparse.Namespace, invocation: Invocation) -> Iterator[_T]:
        """Give the object, in an ndb context. Errors end the command with a line."""
        console = invocation.console
        name = getattr(options, "app", "") or console.environ.get(self.variable, "")
        app = console.environ.get(apps.VARIABLE, "")
        if not (name or app):
            raise CommandError(
                f"no {self.noun} is named. To fix it: pass --app MODULE:ATTRIBUTE, or set "
                f"{apps.VARIABLE}=main:app, or {self.variable}=main:{self.noun}"
            )
        form = ids.in_use()
        log, handler = logging.getLogger("userlock"), _Handler(console.stderr)
        handler.setLevel(logging.WARNING)
        log.addHandler(handler)
        try:
            # The app may print while it is imported or runs jobs: not between lines of the answer.
            with contextlib.redirect_stdout(console.stderr):
                if not name:
                    found = apps.find_in_app(app, self.kind, self.noun, self.same)
                elif self.find is None:
                    found = apps.find_object(name, self.kind, self.noun)
                else:
                    found = self.find(name)
                if console.environ.get("USERLOCK_SHOW_IDS"):
                    ids.use(form)  # the operator's word counts, not the app's
                if defaults.service is None and invocation.names_store:
                    configure(service=invocation.service())
                with contextlib.ExitStack() as opened:
                    try:
                        opened.enter_context(self.context(found))
                    except (ConfigurationError, *DATASTORE_ERRORS):
                        raise
                    except (Exception, SystemExit) as error:
                        text = legible(text_of(error), 200)
                        raise CommandError(
                            f"{name or app}: its function for an ndb client fails: {text}. To fix "
                            f"it: name the app's {self.noun}, or the app itself by {apps.VARIABLE}"
                        ) from error
                    yield found
        except NoService as error:
            raise CommandError(
                "the app has configured no lock service when it is imported. To fix it: pass "
                "--store, or set USERLOCK_STORE"
            ) from error
        except ConfigurationError as error:
            raise CommandError(str(error)) from error
        except LockTimeout as error:
            raise CommandError(f"the owner is busy, try again: {error}", cli.NO) from error
        except DATASTORE_ERRORS as error:
            # ndb wraps the reason: "Maximum number of 3 retries exceeded …, last exception: …".
            reason = cli.plain_reason(legible(str(error).rpartition("last exception: ")[2], 500))
            raise CommandError(f"Datastore does not answer: {reason}", cli.UNREACHABLE) from error
        finally:
            log.removeHandler(handler)


class _Handler(logging.StreamHandler[TextIO]):
    """Writes warnings, unless the app says where else.

    `userlock outbox run` reports the jobs itself, `userlock flows complete` the requests.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        reported = isinstance(getattr(record, "userlock", None), JobRan | RequestServed)
        return not (logging.getLogger().handlers or reported)

    def format(self, record: logging.LogRecord) -> str:
        # Texts of errors are foreign: no line of the log may steer the terminal.
        return "\n".join(map(escaped, super().format(record).split("\n")))


@contextlib.contextmanager
def heard(kind: type[_T]) -> Iterator[list[_T]]:
    found: list[_T] = []

    def listen(event: Event) -> None:
        if isinstance(event, kind):
            found.append(event)

    LISTENERS.add(listen)
    try:
        yield found
    finally:
        LISTENERS.remove(listen)


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether to stop between steps of work: by Ctrl-C or SIGTERM.

    A second one interrupts.
    """
    requests: list[int] = []

    def request(number: int, frame: FrameType | None) -> None:
        if requests:
            raise KeyboardInterrupt
        requests.append(number)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {each: signal.signal(each, request) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(requests)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
