"""Workers run jobs, and their failures are reported."""

from __future__ import annotations

import math
import os

import pytest

from benchmarks.crew import JobFailed, Worker, all_do, crew, gather

pytestmark = pytest.mark.slow  # starts processes


def test_a_job_is_done_in_another_process() -> None:
    with crew(2) as workers:
        ids = all_do(workers, os.getpid, [(), ()])
        assert len({os.getpid(), *ids}) == 3
        assert workers[0].call(math.sqrt, 9.0) == 3.0


def test_an_error_is_reported_and_the_worker_goes_on() -> None:
    with crew(1) as (worker,):
        with pytest.raises(JobFailed, match="ValueError: "):
            worker.call(math.sqrt, -1.0)
        assert worker.call(math.sqrt, 4.0) == 2.0


def test_all_results_are_received_before_the_first_failure_is_raised() -> None:
    with crew(2) as workers:
        with pytest.raises(JobFailed):
            all_do(workers, math.sqrt, [(-1.0,), (4.0,)])
        # No worker's result stays in the pipe, to be taken for that of the next job.
        assert all_do(workers, math.sqrt, [(9.0,), (16.0,)]) == [3.0, 4.0]


def test_a_worker_that_dies_is_noticed() -> None:
    with crew(1) as (worker,):
        worker.send(os._exit, 1)
        with pytest.raises(JobFailed, match="died"):
            worker.receive()


def test_a_worker_that_hangs_can_be_replaced() -> None:
    with crew(1) as workers:
        workers[0].send(input_for_ever)
        assert not workers[0].answered(0)
        workers[0].stop()
        workers[0] = Worker()
        workers[0].send(math.sqrt, 4.0)
        assert gather(workers) == [2.0]


def input_for_ever() -> None:
    reading, _ = os.pipe()
    os.read(reading, 1)
