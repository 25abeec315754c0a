"""Test the command line as processes: signals, and what they leave behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.contract.cli.process import Cli
from tests.contract.outbox.operators.app import UNGUARDED, pay
from tests.servers import Memcached
from userlock.outbox import arguments
from userlock.outbox.rows import JobRow, dead_jobs, new_key

pytestmark = pytest.mark.slow

#: Of the redrive that is killed: how many jobs, at which rate, and when it is killed.
JOBS = int(os.environ.get("USERLOCK_TEST_REDRIVE", "300"))
RATE = os.environ.get("USERLOCK_TEST_REDRIVE_RATE", "200")
KILLED_AT = 0.5 if JOBS > 300 else 0.0
#: The rows that are stored at once.
_TOGETHER = 100

APP = ("--app", "tests.contract.outbox.operators.app:outbox")


@pytest.fixture
def cli(
    ndb_client: ndb.Client, datastore: userlock_emulator.Emulator, memcached: Memcached
) -> Iterator[Cli]:
    """Provide a command line on the emulator, with locks in a real memcached."""
    url = memcached.url(f"outbox{uuid.uuid4().hex[:8]}")
    with contextlib.closing(userlock.LockService.from_url(url)) as service:
        userlock.configure(service=service)
        yield Cli(url, datastore.env)


def put_dead(number: int) -> None:
    """Store dead jobs of many owners, some with several."""
    owners = max(500, number // 4)
    now = round(time.time() * 1e6)
    with ndb.Client().context():
        for first in range(0, number, _TOGETHER):

            def put(first: int = first) -> None:
                ndb.put_multi(
                    JobRow(
                        key=new_key(owner, now),
                        owner=owner,
                        job=pay.name,
                        arguments=arguments.encode(pay.name, (owner,), {}),
                        ready_at=now,
                        staged_at=now,
                        attempts=1,
                        dead=f"{pay.name} RuntimeError",
                        died_at=1,
                    )
                    for owner in (
                        f"user{index % owners}"
                        for index in range(first, min(first + _TOGETHER, number))
                    )
                )

            ndb.transaction(put)


def counts() -> dict[tuple[bool, int], int]:
    """Count the jobs by whether they are dead, and how often they were redriven."""
    found: dict[tuple[bool, int], int] = {}
    cursor, more = None, True
    while more:
        with ndb.Client().context():  # whose caches grow
            rows, cursor, more = JobRow.query().fetch_page(1000, start_cursor=cursor)
        for row in rows:
            state = (row.dead is not None, row.redriven)
            found[state] = found.get(state, 0) + 1
    return found


@pytest.mark.parametrize(
    ("number", "jobs"),
    [
        (signal.SIGINT, 240),
        (signal.SIGTERM, 240),
        pytest.param(signal.SIGINT, 2_000, marks=pytest.mark.slow),
    ],
)
def test_a_redrive_is_interrupted_and_resumed(cli: Cli, number: signal.Signals, jobs: int) -> None:
    put_dead(jobs)
    assert counts() == {(True, 0): jobs}
    command = ("outbox", "redrive", "--all", *APP)
    times = 0
    while True:
        # Slowly, or it is done before the signal comes.
        rate = "200" if times < 3 else "10000"
        with cli.on_terminal(*command, "--rate", rate) as screen:
            if times < 3:
                screen.read_until(" of ")
                screen.process.send_signal(number)
            code = screen.end()
        assert "Traceback" not in screen.text
        (done, left) = re.findall(r"(\d[\d,]*) jobs? redriven, ([\d,]+) left", screen.text)[0]
        found = counts()
        assert set(found) <= {(True, 0), (False, 1)}, "none twice"
        assert found.get((True, 0), 0) == int(left.replace(",", ""))
        assert int(done.replace(",", "")) > 0
        times += 1
        if left == "0":
            break
        assert code == 130
        assert "The same command goes on" in screen.text
    assert code == 0
    assert times > 2, "it was interrupted"
    assert counts() == {(False, 1): jobs}


def test_a_second_ctrl_c_leaves_each_job_as_it_was_or_redriven(cli: Cli) -> None:
    put_dead(300)
    with cli.on_terminal("outbox", "redrive", "--all", "--rate", "200", *APP) as screen:
        screen.read_until(" of ")
        screen.process.send_signal(signal.SIGINT)
        screen.process.send_signal(signal.SIGINT)
        assert screen.end() == 130
    assert set(counts()) <= {(True, 0), (False, 1)}
    outcome = cli.run("outbox", "redrive", "--all", "--rate", "10000", "--json", *APP)
    # Locks that were not released are held until their leases end.
    assert outcome.document["left"] <= 25
    assert set(counts()) <= {(True, 0), (False, 1)}


@pytest.mark.timeout(120 + JOBS / 50)
def test_a_redrive_that_is_killed_is_resumed(cli: Cli) -> None:
    """Killed midway and resumed: none is redriven twice, none is left.

    With 300 jobs, of an owner each, at 200 a second. For the figures of a large one, of four
    jobs an owner, at a rate:

        USERLOCK_TEST_REDRIVE=100000 USERLOCK_TEST_REDRIVE_RATE=1000 \\
            pytest -s tests/contract/outbox/operators/test_processes.py -k killed
    """
    put_dead(JOBS)
    command = ("outbox", "redrive", "--all", "--rate", RATE, *APP)
    began = time.monotonic()
    with cli.on_terminal(*command) as screen:
        shown = 0
        while shown < max(1, JOBS * KILLED_AT):
            screen.read_until(" redriven", times=screen.text.count(" redriven") + 1)
            shown = number(re.findall(r"([\d,]+) of ", screen.text)[-1])
        screen.process.kill()
        screen.process.wait()
    first_seconds = time.monotonic() - began
    before = counts()
    assert set(before) == {(True, 0), (False, 1)}, "it was killed midway"
    redriven = []
    began = time.monotonic()
    while counts_of_dead():
        # Owners whose locks it held are busy until their leases end.
        with cli.on_terminal(*command) as screen:
            screen.end()
        redriven.append(number(re.findall(r"([\d,]+) jobs? redriven", screen.text)[-1]))
    seconds = time.monotonic() - began
    assert counts() == {(False, 1): JOBS}, "none twice, none left"
    assert before[False, 1] + sum(redriven) == JOBS
    print(
        f"\n{JOBS:,} dead jobs, --rate {RATE}: killed after {before[False, 1]:,} in "
        f"{first_seconds:.1f} s ({before[False, 1] / first_seconds:.0f} a second); resumed: "
        f"{' + '.join(f'{each:,}' for each in redriven)} in {seconds:.1f} s "
        f"({sum(redriven) / seconds:.0f} a second); each redriven once, none left"
    )


def counts_of_dead() -> int:
    with ndb.Client().context():
        dead: int = dead_jobs().count()
        return dead


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.parametrize("guarded", [True, False])
def test_a_redrive_that_another_one_passes(cli: Cli, guarded: bool) -> None:
    """It has read the keys, and is stopped. The control: without its look in the transaction."""
    put_dead(200)
    environ = cli.env | ({} if guarded else {UNGUARDED: "1"})
    slow = Cli(cli.url, environ)
    with slow.on_terminal("outbox", "redrive", "--all", "--rate", "100", *APP) as screen:
        screen.read_until(" of ")
        screen.process.send_signal(signal.SIGSTOP)
        fast = ("outbox", "redrive", "--all", "--rate", "10000", *APP)
        assert cli.run(*fast).code in (0, 1)
        assert counts_of_dead() <= 25, "of a batch that was stopped midway"
        screen.process.send_signal(signal.SIGCONT)
        screen.end()
    redriven = Counter({times: each for (_, times), each in counts().items()})
    assert redriven.total() == 200
    assert (set(redriven) <= {0, 1}) == guarded
    assert bool(redriven[2]) != guarded


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_a_relay_ends_by_a_signal(cli: Cli, number: signal.Signals) -> None:
    with ndb.Client().context():
        pay.stage_now("ann")
    with cli.start("outbox", "relay", "--json", *APP) as process:
        assert process.stderr is not None
        assert "imported" in process.stderr.readline()
        _wait_until_pushed_back()
        process.send_signal(number)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (0, '{"stopped": true}\n', "")


def _wait_until_pushed_back() -> None:
    with ndb.Client().context():
        while True:
            (row,) = JobRow.query().fetch(use_cache=False)
            if row.wakes:
                return


def test_a_relay_for_a_time(cli: Cli) -> None:
    outcome = cli.run("outbox", "relay", "--seconds", "0.1", *APP)
    assert (outcome.code, outcome.out) == (0, "the relay has ended\n")


def test_run_in_a_process(cli: Cli) -> None:
    with ndb.Client().context():
        key = pay.stage_now("ann").key
    outcome = cli.run("outbox", "run", key, "--json", *APP)
    assert (outcome.code, outcome.document["done"]) == (0, True)
    assert "this is printed while a job runs" in outcome.err
    assert cli.run("outbox", "show", key, *APP).code == 1


def test_a_purge_on_a_terminal(cli: Cli) -> None:
    put_dead(12)
    with cli.on_terminal("outbox", "purge", "--all", *APP) as screen:
        screen.read_until("[y/N]")
        screen.process.send_signal(signal.SIGINT)
        assert screen.end() == 130
    assert counts() == {(True, 0): 12}
    with cli.on_terminal("outbox", "purge", "--all", *APP) as screen:
        screen.read_until("[y/N]")
        screen.type("y\n")
        screen.read_until("Type their number")
        screen.type("12\n")
        assert screen.end() == 0
    assert counts() == {}


def test_without_a_lock_service_nothing_is_redriven(cli: Cli) -> None:
    put_dead(1)
    outcome = cli.run("outbox", "redrive", "--all", *APP, env={"USERLOCK_STORE": ""})
    assert outcome.code == 2
    assert "no lock service" in outcome.err
    assert "--store" in outcome.err
    assert counts() == {(True, 0): 1}


@pytest.mark.slow
def test_datastore_is_down(cli: Cli) -> None:
    outcome = cli.run("outbox", "status", *APP, env={"DATASTORE_EMULATOR_HOST": "127.0.0.1:9"})
    assert outcome.code == 3
    assert "Datastore does not answer" in outcome.err
