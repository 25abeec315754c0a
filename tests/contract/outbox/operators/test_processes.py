"""Test the command line as processes: signals, and what they leave behind."""

from __future__ import annotations

import contextlib
import re
import signal
import uuid
from collections.abc import Iterator

import pytest
from google.cloud import ndb

import emulator
import userlock
from tests.contract.cli.process import Cli
from tests.contract.outbox.operators.app import pay
from tests.servers import Memcached
from userlock.outbox.rows import JobRow

APP = ("--app", "tests.contract.outbox.operators.app:outbox")


@pytest.fixture
def cli(
    ndb_client: ndb.Client, datastore: emulator.Emulator, memcached: Memcached
) -> Iterator[Cli]:
    """Provide a command line on the emulator, with locks in a real memcached."""
    url = memcached.url(f"outbox{uuid.uuid4().hex[:8]}")
    with contextlib.closing(userlock.LockService.from_url(url)) as service:
        userlock.configure(service=service)
        yield Cli(url, datastore.env)


def put_dead(number: int) -> None:
    """Store dead jobs of many owners, some with several."""
    client = ndb.Client()
    with client.context():
        for first in range(0, number, 100):

            def put(first: int = first) -> None:
                for index in range(first, min(first + 100, number)):
                    pay.stage(f"user{index % 500}")

            ndb.transaction(put)
        rows = JobRow.query().fetch()
        for first in range(0, number, 100):

            def die(first: int = first) -> None:
                for row in ndb.get_multi([row.key for row in rows[first : first + 100]]):
                    row.dead, row.died_at = "pay RuntimeError", 1
                    row.attempts, row.queued = 1, None
                    row.look_at(None)
                    row.put()

            ndb.transaction(die)


def counts() -> dict[tuple[bool, int], int]:
    """Count the jobs by whether they are dead, and how often they were redriven."""
    found: dict[tuple[bool, int], int] = {}
    with ndb.Client().context():
        for row in JobRow.query().fetch(use_cache=False):
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
    command = ("outbox", "redrive", "--all", "--rate", "10000", *APP)
    times = 0
    while True:
        with cli.on_terminal(*command) as screen:
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
    with cli.on_terminal("outbox", "redrive", "--all", "--rate", "10000", *APP) as screen:
        screen.read_until(" of ")
        screen.process.send_signal(signal.SIGINT)
        screen.process.send_signal(signal.SIGINT)
        assert screen.end() == 130
    assert set(counts()) <= {(True, 0), (False, 1)}
    outcome = cli.run("outbox", "redrive", "--all", "--rate", "10000", "--json", *APP)
    # A lock that was not released is held until its lease ends.
    assert outcome.document["left"] <= 1
    assert set(counts()) <= {(True, 0), (False, 1)}


def test_a_redrive_that_is_killed_is_resumed(cli: Cli) -> None:
    put_dead(300)
    with cli.on_terminal("outbox", "redrive", "--all", "--rate", "10000", *APP) as screen:
        screen.read_until(" of ")
        screen.process.kill()
        screen.process.wait()
    before = counts()
    assert set(before) <= {(True, 0), (False, 1)}
    outcome = cli.run("outbox", "redrive", "--all", "--rate", "10000", "--json", *APP)
    assert outcome.document["left"] <= 1, "the lock of the one in progress is held by nobody"
    assert set(counts()) <= {(True, 0), (False, 1)}


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
