"""The children: their commands, and their health checks."""

from __future__ import annotations

import contextlib
import enum
import http.client
import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from sample_app.stack.children import Child
from sample_app.stack.ports import LOOPBACK


class OnPath(enum.Enum):
    """A marker for "the one on the PATH, if there is one"."""

    ON_PATH = enum.auto()


ON_PATH = OnPath.ON_PATH
ROOT = Path(__file__).resolve().parents[2]
_ANSWER_SECONDS = 1.0
_SETTING_SECONDS = 10.0


def emulator(
    port: int,
    *,
    concurrency_mode: str | None,
    log_file: Path,
    tasks_port: int | None = None,
    queue: str = "",
) -> Child:
    """Return the Datastore emulator, in memory, and with `tasks_port` Cloud Tasks with one queue.

    A mode of None is its own default. Only its accepting connections is checked here. The site's
    health check reads from it.
    """
    mode = [] if concurrency_mode is None else ["--concurrency-mode", concurrency_mode]
    tasks = [] if tasks_port is None else ["--tasks", str(tasks_port), "--tasks-queue", queue]
    return Child(
        "the emulator",
        [sys.executable, "-m", "userlock_emulator", "start", "--port", str(port), *mode, *tasks],
        answers=lambda: accepts(port) and (tasks_port is None or accepts(tasks_port)),
        log_file=log_file,
        cwd=ROOT,
    )


def limit_queue(tasks_port: int, queue: str, *, most: int) -> None:
    """Let a queue call the site for at most so many tasks at a time, as its settings would."""
    limit = "rateLimits.maxConcurrentDispatches"
    connection = http.client.HTTPConnection(LOOPBACK, tasks_port, timeout=_SETTING_SECONDS)
    with contextlib.closing(connection):
        body = json.dumps({"name": queue, "rateLimits": {"maxConcurrentDispatches": most}})
        headers = {"Content-Type": "application/json"}
        connection.request("PATCH", f"/v2/{queue}?updateMask={limit}", body, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"Cloud Tasks has refused the queue's limit: {answer.read(500)!r}")


def payment_provider(port: int, *, log_file: Path) -> Child:
    """Return the fake payment provider."""
    return Child(
        "the payment provider",
        [sys.executable, "-m", "sample_app.payment_provider", "--port", str(port)],
        answers=lambda: accepts(port),
        log_file=log_file,
        cwd=ROOT,
    )


def memcached_binary() -> str | None:
    """Return the path of the real memcached, if there is one."""
    return shutil.which("memcached")


def memcached(port: int, *, log_file: Path, binary: str | None) -> Child:
    """Return memcached: the real `binary`, or the embedded server if that is None."""
    if binary is None:
        command = [sys.executable, "-m", "userlock_emulator.memcache", "--port", str(port)]
    else:
        # -U 0: no UDP. 64 MB is memcached's own default.
        command = [binary, "-l", LOOPBACK, "-p", str(port), "-U", "0", "-m", "64"]
    # memcached refuses to run as root.
    user = "nobody" if binary is not None and os.geteuid() == 0 else None
    return Child(
        "memcached",
        command,
        answers=lambda: _memcached_answers(port),
        log_file=log_file,
        cwd=ROOT,
        user=user,
    )


def site(
    port: int,
    *,
    app: str,
    workers: int,
    threads: int,
    settings: Mapping[str, str],
    log_file: Path,
) -> Child:
    """Return the site under gunicorn. Each worker builds its own app, after the fork."""
    command = [
        *(sys.executable, "-m", "gunicorn", app),
        *("--bind", f"{LOOPBACK}:{port}", "--worker-class", "gthread"),
        *("--workers", str(workers), "--threads", str(threads)),
        *("--graceful-timeout", "3", "--access-logfile", "-", "--no-control-socket"),
    ]
    return Child(
        "the site",
        command,
        answers=lambda: _site_answers(port),
        log_file=log_file,
        env=_environment(settings),
        cwd=ROOT,
    )


def relay(*, outbox: str, settings: Mapping[str, str], log_file: Path) -> Child:
    """Return the relay of the site's outbox, as a process. A scheduler may call it instead."""
    return Child(
        "the relay",
        [sys.executable, "-m", "userlock", "outbox", "relay", "--app", outbox],
        answers=lambda: True,  # it serves nobody
        log_file=log_file,
        env=_environment(settings),
        cwd=ROOT,
    )


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    # A proxy for the machine must not apply to loopback.
    return {**os.environ, "no_grpc_proxy": LOOPBACK, "no_proxy": LOOPBACK, **settings}


def accepts(port: int) -> bool:
    """Return whether the port accepts connections."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=_ANSWER_SECONDS):
            return True
    except OSError:
        return False


def _memcached_answers(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=_ANSWER_SECONDS) as connection:
            connection.sendall(b"version\r\n")
            return connection.recv(64).startswith(b"VERSION")
    except OSError:
        return False


def _site_answers(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_ANSWER_SECONDS)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
