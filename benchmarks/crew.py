"""Processes that do what they are told, one job at a time.

A worker shares nothing with this process but its pipe. What a job leaves in its
module's variables is there for the next one, which is how a worker keeps its
connections.
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
    """A worker's job raised, or the worker died; the message says what, of which class."""


class Worker:
    """One process."""

    def __init__(self) -> None:
        context = processes.context()
        self._control, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        # Held by the worker alone, so that its death is seen here.
        theirs.close()

    def send(self, job: Callable[[*Ts], object], *arguments: *Ts) -> None:
        """Begin a job: a function of a module, with arguments that can be pickled."""
        try:
            self._control.send((job, arguments))
        except OSError as error:
            raise JobFailed("the process has died") from error

    def answered(self, seconds: float) -> bool:
        """Whether the job that was begun is over, at the latest after so long a wait."""
        return self._control.poll(seconds)

    def receive(self) -> Any:
        """The result of the job that was begun; waits for it.

        Raises:
            JobFailed: it raised, or the process is gone.
        """
        try:
            done, result = self._control.recv()
        except (EOFError, OSError):
            raise JobFailed("the process has died") from None
        if not done:
            raise JobFailed(result)
        return result

    def call(self, job: Callable[[*Ts], R], *arguments: *Ts) -> R:
        """Do a job and wait for its result."""
        self.send(job, *arguments)
        result: R = self.receive()
        return result

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._control.close()


@contextlib.contextmanager
def crew(size: int) -> Iterator[list[Worker]]:
    """So many workers, gone afterwards. A worker that is replaced in the list is its replacer's."""
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
    """The same job by all at once, each with arguments of its own; their results.

    Raises:
        JobFailed: the first failure, after all have answered.
    """
    for worker, own in zip(workers, arguments, strict=True):
        worker.send(job, *own)
    return gather(workers)


def gather(workers: Sequence[Worker]) -> list[Any]:
    """The results of the jobs that were begun; `JobFailed` after all have answered."""
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
    """For a process of ours: what libraries log is dropped, where nobody has asked for it."""
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
