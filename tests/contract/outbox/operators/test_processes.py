"""Test the command line as processes: signals, and what they leave behind."""

from __future__ import annotations

import contextlib
import re
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from google.cloud import ndb

import userlock
from tests.contract.cli.process import Cli
from tests.contract.outbox.operators import conftest
from tests.contract.outbox.operators.app import pay
from tests.servers import Memcached
from userlock.outbox.rows import JobRow
from userlock_emulator import Emulator

pytestmark = pytest.mark.slow

APP = ("--app", "tests.contract.outbox.operators.app:outbox")
REDRIVE = ("outbox", "redrive", "--all", *APP)


@pytest.fixture
def cli(ndb_client: ndb.Client, datastore: Emulator, memcached: Memcached) -> Iterator[Cli]:
    """Provide a command line on the emulator, with locks in a real memcached."""
    url = memcached.url(f"outbox{uuid.uuid4().hex[:8]}")
    with contextlib.closing(userlock.LockService.from_url(url)) as service:
        userlock.configure(service=service)
        yield Cli(url, datastore.env)


def put_dead(number: int) -> None:
    """Store dead jobs of an owner each."""
    with ndb.Client().context():
        conftest.put_dead([f"user{each}" for each in range(number)], pay.name, "", time.time() - 1)


def counts() -> Counter[tuple[bool, int]]:
    """Count the jobs by whether they are dead, and how often they were redriven."""
    with ndb.Client().context():
        rows = JobRow.query().fetch()
        return Counter((row.dead is not None, row.redriven) for row in rows)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_redrive_is_ended_and_resumed(cli: Cli, number: signal.Signals) -> None:
    """None is redriven twice, none is left."""
    put_dead(240)
    with cli.on_terminal(*REDRIVE, "--rate", "200") as screen:
        while (False, 1) not in counts():
            assert screen.process.poll() is None
        screen.process.send_signal(number)
        code = screen.end()
    assert "Traceback" not in screen.text
    assert set(counts()) == {(True, 0), (False, 1)}, "it was ended midway, and none is twice"
    if number == signal.SIGKILL:
        assert code == -number
    else:
        (done, left) = re.findall(r"(\d+) jobs? redriven, (\d+) left", screen.text)[0]
        assert (code, counts()) == (130, {(True, 0): int(left), (False, 1): int(done)})
        assert "The same command goes on" in screen.text
    while cli.run(*REDRIVE, "--rate", "10000").code:
        pass  # after a kill, owners whose locks it held are busy until their leases end
    assert counts() == {(False, 1): 240}


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
            if row.tries:
                return


def test_run_to_its_end(cli: Cli) -> None:
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


@pytest.mark.parametrize(
    ("env", "code", "says"),
    [
        ({"USERLOCK_STORE": ""}, 2, "no lock service when it is imported. To fix it: pass --store"),
        ({"DATASTORE_EMULATOR_HOST": "127.0.0.1:9"}, 3, "Datastore does not answer"),
    ],
    ids=["no lock service", "no Datastore"],
)
def test_nothing_is_redriven_without(cli: Cli, env: dict[str, str], code: int, says: str) -> None:
    put_dead(1)
    outcome = cli.run(*REDRIVE, env=env)
    assert (outcome.code, says in outcome.err) == (code, True)
    assert counts() == {(True, 0): 1}
