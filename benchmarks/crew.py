"""Worker processes that run one job at a time.

A worker shares nothing with this process but its pipe. The module variables of its jobs persist
between jobs, which is how a worker keeps its connections.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar, TypeVarTuple

from benchmarks import processes

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class JobFailed(Exception):
    """A worker's job raised, or the worker died. The message names the error and its class."""


class Worker:
    """One worker process."""

    def __init__(self) -> None:
        context = processes.context()
        self._control, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        # Held by the worker alone, so that its death is noticed here.
        theirs.close()

    def send(self, job: Callable[[*Ts], object], *arguments: *Ts) -> None:
        """Begin a job: a module's function, with arguments that can be pickled."""
        try:
            self._control.send((job, arguments))
        except OSError as error:
            raise JobFailed("the process has died") from error

    def answered(self, seconds: float) -> bool:
        """Wait at most this long, and return whether the job is over."""
        return self._control.poll(seconds)

    def receive(self) -> Any:
        """Wait for the job and return its result.

        Raises:
            JobFailed: it raised, or the process has died.
        """
        try:
            done, result = self._control.recv()
        except (EOFError, OSError):
            raise JobFailed("the process has died") from None
        if not done:
            raise JobFailed(result)
        return result

    def call(self, job: Callable[[*Ts], R], *arguments: *Ts) -> R:
        """Run a job and return its result."""
        self.send(job, *arguments)
        result: R = self.receive()
        return result

    def stop(self) -> None:
        """End the process, whatever its state."""
        self._process.kill()
        self._process.join()
        self._control.close()


@contextlib.contextmanager
def crew(size: int) -> Iterator[list[Worker]]:
    """Provide workers and end them afterwards. A caller that replaces a worker in the list ends the
    old one."""
    workers: list[Worker] = []
    try:
        workers += [Worker() for _ in range(size)]
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def all_do(
    workers: Sequence[Worker], job: Callable[[*Ts], R], arguments: Sequence[tuple[*Ts]]
) -> list[R]:
    """Run the same job in all workers at once, each with its own arguments, and return the results.

    Raises:
        JobFailed: the first failure, after all have finished.
    """
    for worker, own in zip(workers, arguments, strict=True):
        worker.send(job, *own)
    return gather(workers)


def gather(workers: Sequence[Worker]) -> list[Any]:
    """Return the results of the running jobs; raise `JobFailed` after all have finished."""
    results: list[Any] = []
    failures: list[JobFailed] = []
    for worker in workers:
        try:
            results.append(worker.receive())
        except JobFailed as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return results


def keep_quiet() -> None:
    """Drop libraries' log messages in our own processes."""
    logging.getLogger().addHandler(logging.NullHandler())


def _serve(control: Connection) -> None:  # pragma: no cover (runs in a process of its own)
    keep_quiet()
    with contextlib.suppress(KeyboardInterrupt, EOFError):
        while True:
            job, arguments = control.recv()
            try:
                answer = True, job(*arguments)
            except Exception as error:
                answer = False, f"{type(error).__name__}: {error}"
            control.send(answer)
