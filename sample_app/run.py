"""The command `make run`: start everything, print the addresses, wait, stop everything."""

from __future__ import annotations

import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sample_app.config import ConfigError, Settings
from sample_app.stack import ChildDied, PortTaken, Stack, ports

PORT = 8080
DATASTORE_PORT = 8081
MEMCACHED_PORT = 11211
TASKS_PORT = 8123
PROVIDER_PORT = 8124
MEMCACHED_PAUSE_SECONDS = 10.0
RELAY_PAUSE_SECONDS = 2.0
POLL_SECONDS = 0.2


def run(environ: Mapping[str, str] | None = None) -> int:
    """Run the stack until Ctrl-C, SIGTERM or SIGHUP, and return the exit code.

    0 after a signal, 1 if a process died, 2 if a setting or a port is unusable. In each case all
    processes that it started have ended.
    """
    environ = os.environ if environ is None else environ
    started = time.monotonic()
    try:
        stack = _configured(environ)
        with _signals_interrupt():
            _say("Starting the emulator, memcached, the site and its relay …")
            with stack:
                _seed(stack)
                _say(_summary(stack, time.monotonic() - started))
                _supervise(stack)
    except _Interrupted:
        _say("All stopped. Goodbye.")
        return 0
    except (PortTaken, ConfigError) as problem:
        _complain(problem)
        return 2
    except (ChildDied, OSError) as problem:
        _complain(problem)
        return 1
    raise AssertionError("supervising ends with an exception only")


class _Interrupted(BaseException):
    """Ctrl-C, SIGTERM or SIGHUP. A BaseException, so that no handler in between stops it."""


def _configured(environ: Mapping[str, str]) -> Stack:
    settings = Settings.load(environ=environ)
    port = ports.from_environment(environ, "PORT")
    if port is None:
        port = PORT
    # Nobody types the others, so any free port will do unless one is configured.
    datastore_port = ports.from_environment(environ, "DATASTORE_PORT")
    if datastore_port is None:
        datastore_port = ports.prefer(DATASTORE_PORT, taken=(port,))
    memcached_port = ports.from_environment(environ, "MEMCACHED_PORT")
    if memcached_port is None:
        memcached_port = ports.prefer(MEMCACHED_PORT, taken=(port, datastore_port))
    tasks_port = ports.from_environment(environ, "TASKS_PORT")
    if tasks_port is None:
        tasks_port = ports.prefer(TASKS_PORT, taken=(port, datastore_port, memcached_port))
    provider_port = ports.from_environment(environ, "PROVIDER_PORT")
    if provider_port is None:
        taken = (port, datastore_port, memcached_port, tasks_port)
        provider_port = ports.prefer(PROVIDER_PORT, taken=taken)
    return Stack(
        port=port,
        datastore_port=datastore_port,
        memcached_port=memcached_port,
        tasks_port=tasks_port,
        provider_port=provider_port,
        relay=True,
        protection=settings.protection,
        think_ms=settings.think_ms,
        log_dir=Path(environ.get("LOG_DIR") or ".run"),
    )


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Raise `_Interrupted` on the first signal. Later ones do not interrupt the stopping."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def on_first(number: int, frame: object) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        _say("\nStopping …")
        raise _Interrupted

    before = {number: signal.signal(number, on_first) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _seed(stack: Stack) -> None:
    """Add the demo learners through the site itself."""
    request = urllib.request.Request(f"{stack.app_url}/tasks/seed", method="POST")  # noqa: S310
    # No proxy, whatever the environment says: the site is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30):
        pass


def _supervise(stack: Stack) -> None:
    """Watch the children until the site cannot go on, then raise `ChildDied`.

    The site works without memcached, which is restarted after a pause. The pause is long enough to
    see the site without it.
    """
    while True:
        stack.check()
        if not stack.memcached.running:
            _say(
                f"{stack.memcached.report_of_death()}\n"
                "The site continues without it: leases are degraded and stale writes are "
                f"refused. Restarting it in {MEMCACHED_PAUSE_SECONDS:.0f} s."
            )
            time.sleep(MEMCACHED_PAUSE_SECONDS)
            stack.memcached.restart()
            _say("memcached is back.")
        if stack.relay is not None and not stack.relay.running:
            _say(
                f"{stack.relay.report_of_death()}\n"
                "Jobs whose messages are lost wait for it. Restarting it in "
                f"{RELAY_PAUSE_SECONDS:.0f} s."
            )
            time.sleep(RELAY_PAUSE_SECONDS)
            stack.relay.restart()
        time.sleep(POLL_SECONDS)


def _summary(stack: Stack, seconds: float) -> str:
    url = stack.app_url
    if stack.memcached_kind == "embedded":
        kind = "the embedded server; `apt-get install memcached` gives the real one"
    else:
        kind = f"{stack.memcached_kind}, pid {stack.memcached.pid}"
    workers = len(stack.worker_pids)
    return f"""
Ready in {seconds:.1f} s.

  The site    {url}   ({workers} worker processes, protection: {stack.protection})
  Datastore   export DATASTORE_EMULATOR_HOST={stack.datastore_host}
  Cloud Tasks export CLOUD_TASKS_EMULATOR_HOST={stack.tasks_host}
  memcached   {stack.memcached_address}   ({kind})
  Payments    {stack.provider_url}   (a fake provider: charges by key)
  Logs        {_short(stack.log_dir)}/site.log, memcached.log, emulator.log, relay.log, provider.log

Try this:

  open {url} in a browser: sign in as a learner or a coach, see the streak grow
  open {url}/nightly : the nightly job and its progress
  open {url}/jobs : mails as jobs of the outbox; close the post office, and see them wait
  open {url}/projects : names that are unique, copies, uploads, a quota, a deletion with progress
  open {url}/payments : buy a course twice, kill the worker in the middle, and see one charge
  open {url}/lab/ : lost updates without a lock and with one
  open {url}/userlock/ : the inspector: the holder and the waiters of each lock
  curl --user ada: -X POST {url}/api/learners/ada/exercises/primes/finish
  curl --user ada: {url}/api/learners/ada
  curl -X POST {url}/tasks/award-badges        the nightly job, as a scheduler starts it
  tail -f {_short(stack.log_dir)}/site.log        waits for locks
  kill {stack.memcached.pid}        stops memcached; the site continues
  PROTECTION=none THINK_MS=50 make run        the site without the lock

Ctrl-C stops everything.
"""


def _short(path: Path) -> str:
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else path)


def _say(text: str) -> None:
    print(text, flush=True)


def _complain(problem: Exception) -> None:
    print(f"error: {problem}", file=sys.stderr, flush=True)
