"""What `make run` shows: start everything, say where it is, wait, stop everything."""

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
MEMCACHED_PAUSE_SECONDS = 10.0
POLL_SECONDS = 0.2


def run(environ: Mapping[str, str] | None = None) -> int:
    """Run the stack until Ctrl-C, SIGTERM or SIGHUP. Returns the exit code.

    0 after a signal, 1 when a process died, 2 when a setting or a port is
    unusable. Whatever it returns, nothing that it started is left.
    """
    environ = os.environ if environ is None else environ
    started = time.monotonic()
    try:
        stack = _configured(environ)
        with _signals_interrupt():
            _say("Starting the Datastore emulator, memcached and the site …")
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
    """Ctrl-C, SIGTERM or SIGHUP. A BaseException: nothing on the way may keep it."""


def _configured(environ: Mapping[str, str]) -> Stack:
    settings = Settings.load(environ=environ)
    port = ports.from_environment(environ, "PORT")
    if port is None:
        port = PORT
    # Nobody types these two, so any free port will do unless one is asked for.
    datastore_port = ports.from_environment(environ, "DATASTORE_PORT")
    if datastore_port is None:
        datastore_port = ports.prefer(DATASTORE_PORT, besides=(port,))
    memcached_port = ports.from_environment(environ, "MEMCACHED_PORT")
    if memcached_port is None:
        memcached_port = ports.prefer(MEMCACHED_PORT, besides=(port, datastore_port))
    return Stack(
        port=port,
        datastore_port=datastore_port,
        memcached_port=memcached_port,
        protection=settings.protection,
        think_ms=settings.think_ms,
        log_dir=Path(environ.get("LOG_DIR") or ".run"),
    )


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """The first signal raises `_Interrupted`; those after it do not cut the stopping short."""
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
    """Add the demo learners, through the site itself."""
    request = urllib.request.Request(f"{stack.app_url}/tasks/seed", method="POST")  # noqa: S310
    # No proxy, whatever the environment says: the site is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30):
        pass


def _supervise(stack: Stack) -> None:
    """Watch the children; returns never, raises `ChildDied` when the site cannot go on.

    Without memcached it can, so that one is started again after a pause that is
    long enough to see the site carry on without it.
    """
    while True:
        stack.check()
        if not stack.memcached.running:
            _say(
                f"{stack.memcached.report_of_death()}\n"
                "The site goes on without it: leases are taken on trust and stale writes are "
                f"refused. Starting it again in {MEMCACHED_PAUSE_SECONDS:.0f} s."
            )
            time.sleep(MEMCACHED_PAUSE_SECONDS)
            stack.memcached.restart()
            _say("memcached is back.")
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
  memcached   {stack.memcached_address}   ({kind})
  Logs        {_short(stack.log_dir)}/site.log, memcached.log, emulator.log

Try this:

  open {url} in a browser: be one of the learners or a coach, see the streak grow
  open {url}/nightly : the nightly job, and how far it is
  open {url}/lab/ : what is lost without a lock, and what with one
  open {url}/userlock/ : the inspector: who holds a lock, who waits, and what for
  curl -X POST {url}/api/learners/ada/exercises/primes/finish
  curl {url}/api/learners/ada
  curl -X POST {url}/tasks/award-badges        the nightly job, as a scheduler starts it
  tail -f {_short(stack.log_dir)}/site.log        who waited for which lock
  kill {stack.memcached.pid}        memcached goes, the site stays
  PROTECTION=none THINK_MS=50 make run        the site as it would be without a lock

Ctrl-C stops everything.
"""


def _short(path: Path) -> str:
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else path)


def _say(text: str) -> None:
    print(text, flush=True)


def _complain(problem: Exception) -> None:
    print(f"error: {problem}", file=sys.stderr, flush=True)
