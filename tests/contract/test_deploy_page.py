"""docs/deploy.md, operate.md and migrate.md: settings as in the examples, commands, safe steps."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import certifi
import flask
import pytest
import yaml
from google.cloud import ndb
from pymemcache.client.base import PooledClient
from werkzeug.serving import make_server

import userlock
import userlock_emulator
from benchmarks import scheme2016
from tests.contract.cli.process import Cli
from tests.documents import ROOT, Block, Page
from tests.servers import Memcached
from tools.traffic.__main__ import main as simulate
from userlock.lock.policy import LockPolicy
from userlock.stores import MemoryStore
from userlock.stores.pool import CONNECT_TIMEOUT, REPLY_TIMEOUT
from userlock.testing import ManualClock

PAGE = Page("docs/deploy.md")
OPERATE = Page("docs/operate.md")
MIGRATE = Page("docs/migrate.md")
CONSOLES = PAGE.take_all("console") + OPERATE.take_all("console")
APP_ENGINE = PAGE.take("sh", "gcloud app deploy")
CLOUD_RUN = PAGE.take_all("sh")
LOAD = OPERATE.take("sh", "load.py")
GCLOUD = OPERATE.take_all("sh")
AROUND = MIGRATE.take("python", "ndb.transaction")
BOTH_LOCKS = MIGRATE.take("python", "lock_util")
README = next(block for block in Page("README.md").blocks if block.text.startswith("# points.py"))
EXAMPLES = ROOT / "examples"


def example(path: str) -> str:
    return (EXAMPLES / path).read_text()


APPS = [yaml.safe_load(example(f"appengine/{name}.yaml")) for name in ("app", "bundled")]
SERVICE = yaml.safe_load(example("cloudrun/service.yaml"))["spec"]["template"]["spec"]
(CONTAINER_RUNS,) = re.findall(r"^CMD (.*)$", example("cloudrun/Dockerfile"), re.MULTILINE)


# --- settings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "files"),
    [
        (2, ["appengine/app.yaml"]),
        (3, ["cloudrun/service.yaml", "cloudrun/Dockerfile"]),
    ],
)
def test_the_settings_are_those_of_the_examples(column: int, files: list[str]) -> None:
    table = PAGE.text.split("## Settings\n")[1].split("\n\n")[0].strip()
    settings = [
        setting
        for row in table.splitlines()[2:]
        for setting in re.findall(r"`(.+?)`", row.split("|")[column])
    ]
    assert len(settings) >= 4
    text = "".join(map(example, files))
    assert [setting for setting in settings if setting not in text] == []


def test_the_files_that_it_names_are_there() -> None:
    for name in ("app.yaml", "bundled.yaml", "cron.yaml", "queue.yaml", "main.py"):
        assert f"`{name}`" in PAGE.text
        assert (EXAMPLES / "appengine" / name).is_file()
    assert "app_engine_apis: true\n" in example("appengine/bundled.yaml")


@pytest.mark.parametrize("folder", ["appengine", "cloudrun"])
def test_the_variables_are_those_that_the_app_reads(folder: str) -> None:
    read = set(re.findall(r'environ(?:\.get)?[\[(]"(\w+)"', example(f"{folder}/main.py")))
    said = {name for app in APPS for name in app["env_variables"]}
    if folder == "cloudrun":
        (container,) = SERVICE["containers"]
        said = {each["name"] for each in container["env"]}
    by_packages = {"USERLOCK_REQUEST_SECONDS", *(name for name in said if name[:5] == "OTEL_")}
    assert read - by_packages == said - by_packages, "which packages read themselves"


@pytest.mark.parametrize("folder", ["appengine", "cloudrun"])
def test_the_outbox_is_read_outside_of_requests(folder: str) -> None:
    """By its metrics, in a thread, and by the command line."""
    assert 'Outbox(os.environ["USERLOCK_QUEUE"], client=ndb.Client)' in example(f"{folder}/main.py")


_SCHEME = r"(?:(?:redis|valkey)[a-z+]*|memcache|appengine|datastore)"


@pytest.mark.parametrize("url", re.findall(rf'({_SCHEME}://[^"`\s…]+)', PAGE.text))
def test_each_url_names_a_store(url: str) -> None:
    with userlock_emulator.start() as datastore, pytest.MonkeyPatch.context() as patch:
        for name, value in datastore.env.items():
            patch.setenv(name, value)
        userlock.LockService.from_url(url.replace("/etc/ca.pem", certifi.where())).close()


def option(command: str, name: str) -> int:
    """Return the number of an option of gunicorn."""
    found = re.search(rf"--{name} (\d+)", command)
    assert found is not None, f"{command} has no --{name}"
    return int(found[1])


def test_as_many_requests_are_let_in_as_there_are_threads() -> None:
    for app in APPS:
        threads = option(app["entrypoint"], "workers") * option(app["entrypoint"], "threads")
        assert app["automatic_scaling"]["max_concurrent_requests"] == threads
    assert SERVICE["containerConcurrency"] == option(CONTAINER_RUNS, "threads")
    assert option(CONTAINER_RUNS, "workers") == 1


# --- from an empty project ----------------------------------------------------------------------

#: Stands for a program of a cloud: writes down its call, and answers as a project would.
STUB = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
case "$*" in
*projectNumber*) echo 123456 ;;
*"value(host)"*) echo 10.1.2.3 ;;
secrets\\ create*) cat >"$CALLS.secret" ;;
esac
"""


def carried_out(blocks: list[Block], folder: Path) -> tuple[list[str], Path]:
    """Run the commands in a copy of the examples; return the calls of a cloud, and the site."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("gcloud", "make", "curl"):
        (programs / name).write_text(STUB)
        (programs / name).chmod(0o755)
    shutil.copytree(EXAMPLES, folder / "examples")
    (folder / "dist").mkdir()
    calls = folder / "calls"
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "CALLS": str(calls)}
    script = "".join(block.text for block in blocks)
    subprocess.run(["sh", "-eu", "-c", script], cwd=folder, env=env, check=True)
    return calls.read_text().splitlines(), folder / "site"


def test_cloud_run_from_an_empty_project(tmp_path: Path) -> None:
    calls, site = carried_out(CLOUD_RUN, tmp_path)
    text = (site / "service.yaml").read_text()
    for name in ("service.yaml", "setup.sh"):
        assert not re.findall(r"\b(PROJECT|REGION|HOST)\b", (site / name).read_text()), name
    assert (site / "wheels").is_dir()
    assert len((tmp_path / "calls.secret").read_text()) > 40
    service = yaml.safe_load(text)["spec"]["template"]["spec"]
    (container,) = service["containers"]
    env = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
    secret = env["SECRET_KEY"]["secretKeyRef"]["name"]
    account = service["serviceAccountName"]
    assert account == "points@my-project.iam.gserviceaccount.com"
    done = "\n".join(calls)
    for wanted in (
        f"gcloud iam service-accounts create {account.split('@')[0]}",
        f"--member=serviceAccount:{account} --role=roles/datastore.user",
        f"gcloud secrets create {secret} ",
        f"gcloud secrets add-iam-policy-binding {secret} --member=serviceAccount:{account}",
        f"gcloud artifacts repositories create {container['image'].split('/')[2]} ",
        f"gcloud builds submit --tag={container['image']}",
        "gcloud tasks queues create jobs --project=my-project --location=europe-west1",
        f"--set-env-vars=USERLOCK_APP=main:app,USERLOCK_QUEUE={env['USERLOCK_QUEUE']},"
        f"USERLOCK_STORE={env['USERLOCK_STORE']}\n",
        "--uri=https://points-123456.europe-west1.run.app/userlock/relay",
    ):
        assert wanted in f"{done} ", wanted
    assert "10.1.2.3" in env["USERLOCK_STORE"]
    assert done.index("services enable") < done.index("redis instances create")


def test_app_engine(tmp_path: Path) -> None:
    setting = "export PROJECT=my-project REGION=europe-west1\n"
    block = dataclasses.replace(APP_ENGINE, text=setting + APP_ENGINE.text)
    calls, site = carried_out([block], tmp_path)
    text = (site / "app.yaml").read_text()
    assert not re.findall(r"\b(PROJECT|REGION|CONNECTOR)\b", text)
    connector = yaml.safe_load(text)["vpc_access_connector"]["name"].rpartition("/")[2]
    assert f"gcloud compute networks vpc-access connectors create {connector} " in "\n".join(calls)
    assert calls[-1] == "gcloud app deploy app.yaml queue.yaml cron.yaml"
    assert {"queue.yaml", "cron.yaml", "wheels"} <= {each.name for each in site.iterdir()}


def test_the_commands_for_the_operator(tmp_path: Path) -> None:
    setting = "export REGION=europe-west1\n"
    calls, _ = carried_out(
        [dataclasses.replace(GCLOUD[0], text=setting + GCLOUD[0].text), *GCLOUD[1:]], tmp_path
    )
    assert [call.split()[:3] for call in calls] == [
        ["gcloud", "redis", "instances"],
        ["gcloud", "firestore", "fields"],
    ]


def test_the_rows_are_those_of_the_library() -> None:
    table = OPERATE.text.split("## Rows of the library\n")[1].split("```")[0]
    sources = "".join(path.read_text() for path in (ROOT / "userlock").rglob("*.py"))
    kinds = set(re.findall(r'(?:return|KIND\b.*=) "(UserLock\w+)"', sources))
    assert "UserLockJob" in kinds
    assert set(re.findall(r"`(UserLock\w+)`", table)) == kinds - {"UserLockOwner"}


@pytest.mark.parametrize("lock", [True, False], ids=["with-its-lock", "control"])
def test_the_load_test(
    lock: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It counts nothing lost with the README's handler, and updates that a site has lost."""
    counts: collections.Counter[str] = collections.Counter()
    if lock:
        monkeypatch.setattr(ndb.Model, "_kind_map", {})
        service = userlock.LockService(MemoryStore())
        monkeypatch.setattr(
            userlock.LockService, "from_url", staticmethod(lambda *_, **__: service)
        )
        with userlock_emulator.start() as datastore:
            for name, value in datastore.env.items():
                monkeypatch.setenv(name, value)
            names = README.run({"__name__": "points"})
            printed = load(names["app"], monkeypatch, capsys)
        assert re.fullmatch(r"200 accepted, \d+ retries, 0 lost\n", printed)
    else:
        app = flask.Flask(__name__)

        @app.post("/users/<user>/exercise-finished")
        def finish(user: str) -> dict[str, int]:
            counts[user] += 1
            return {"points": 5 * (counts[user] - (counts[user] > 7))}

        assert load(app, monkeypatch, capsys) == "200 accepted, 0 retries, 10 lost\n"


def load(
    app: flask.Flask, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Run the page's load test against the app; return what it prints."""
    _, program, _ = shlex.split(LOAD.text)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(sys, "argv", ["load.py", f"http://127.0.0.1:{server.server_port}"])
    capsys.readouterr()
    try:
        runpy.run_path(str(ROOT / program), run_name="__main__")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    return capsys.readouterr().out


# --- time-outs ------------------------------------------------------------------------------


def test_the_time_outs_are_those_of_the_library() -> None:
    policy = LockPolicy()
    for said in (
        f"| {CONNECT_TIMEOUT}, {REPLY_TIMEOUT}, 0.1 s |",
        f"| wait, interactive | {policy.interactive.wait_timeout:g} s |",
        f"| wait, batch | {policy.batch.wait_timeout:g} s |",
        f"`ages_after` ({policy.batch.ages_after:g} s)",
        f"| lease | {policy.interactive.lock_timeout:g} s |",
        f"| lease with heartbeat | {policy.heartbeat_lock_timeout:g} s |",
    ):
        assert said in PAGE.text, said


def test_the_time_outs_of_the_example_fit_into_each_other() -> None:
    (wait,) = {
        float(seconds)
        for folder in ("appengine", "cloudrun")
        for seconds in re.findall(
            r"wait_timeout=(\d+)", (EXAMPLES / folder / "main.py").read_text()
        )
    }
    assert wait < SERVICE["timeoutSeconds"] < LockPolicy().interactive.lock_timeout
    assert option(CONTAINER_RUNS, "graceful-timeout") < 10


# --- commands and names ---------------------------------------------------------------------


@pytest.mark.parametrize("block", CONSOLES, ids=lambda block: block.text.strip())
def test_each_command_of_the_run_book_works(block: Any, own_memcached: Memcached) -> None:
    ((line, _),) = block.commands()
    program, *arguments = shlex.split(line)
    assert program == "userlock"
    url = own_memcached.url()
    service = userlock.LockService.from_url(url)
    service.acquire("ann", request="POST /answers")
    app = {"USERLOCK_OUTBOX": "tests.contract.outbox.operators.app:outbox"}
    with userlock_emulator.start() as datastore:
        cli = Cli(url, {**datastore.env, **app})
        outcome = cli.run(*arguments)
        while outcome.code == 3:  # a busy machine: memcached has not answered within 0.3 s
            outcome = cli.run(*arguments)
    service.close()
    # The doctor has remarks on a memcached that was just started.
    assert outcome.code in ({0, 1} if arguments[0] == "doctor" else {0}), outcome.err
    if "ann" in arguments:
        assert "POST /answers" in outcome.out


@pytest.mark.long
def test_the_figures_are_those_of_the_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    table = PAGE.text.split("\n| users |")[1].split("\n\n")[0].splitlines()
    users = [cell.strip().replace(",", "") for cell in table[0].split("|")[:-1]]
    assert simulate([f"--users={number}" for number in users]) == 0
    printed = [
        re.split(r"  +", line.strip())[1:]
        for line in capsys.readouterr().out.split("\n\n")[0].splitlines()[1:]
    ]
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in table[2:]]
    assert len(rows) >= 7
    assert [row for row in rows if row not in printed] == []


# --- migration ------------------------------------------------------------------------------


class MovedLearner(userlock.UserModel):
    """A model of a kind of its own: ndb has one class per kind."""

    _lock_id_from_key = userlock.key_id
    points = ndb.IntegerProperty(default=0)


def add_five(user_id: str) -> None:
    learner = MovedLearner.get_by_id(user_id)
    learner.points += 5
    learner.put()


@pytest.fixture
def context(ndb_client: ndb.Client, service: userlock.LockService) -> Iterator[ndb.Client]:
    userlock.configure(service=service, enforcement="log")  # as in step 1
    with ndb_client.context(), userlock.scope():
        with userlock.global_lock("ann"):
            MovedLearner(id="ann").put()
        yield ndb_client


@pytest.fixture
def service(store: MemoryStore, clock: ManualClock) -> userlock.LockService:
    return userlock.LockService(store, clock=clock)


def points() -> int:
    found: int = MovedLearner.get_by_id("ann", use_cache=False).points
    return found


def test_the_lock_goes_around_the_transaction(context: ndb.Client) -> None:
    names = AROUND.run({"userlock": userlock, "ndb": ndb, "add_five": add_five})
    names["finish_exercise"]("ann")
    assert points() == 5


def old_process() -> None:
    """Step 1: the transaction alone."""
    ndb.transaction(lambda: add_five("ann"))


def elsewhere(client: ndb.Client, action: Any) -> threading.Thread:
    """Run another request, which ndb and locks take for one of another process."""

    def run() -> None:
        with client.context(), userlock.scope():
            action()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_request_of_step_3_within_a_transaction_of_step_1(
    context: ndb.Client, datastore: userlock_emulator.Emulator
) -> None:
    """The transaction is retried, or the request waits and is refused. Nothing is lost."""
    accepted: list[int] = []
    others: list[threading.Thread] = []

    def new_request() -> None:
        with userlock.global_lock("ann"), contextlib.suppress(userlock.StaleWriteError):
            add_five("ann")
            accepted.append(5)

    def slowly() -> None:
        learner = MovedLearner.get_by_id("ann")
        if not others:
            others.append(elsewhere(context, new_request))
            while others[0].is_alive() and not datastore.waiting:
                others[0].join(0.001)
        learner.points += 5
        learner.put()

    ndb.transaction(slowly)
    others[0].join()
    assert points() == 5 + sum(accepted)


@pytest.fixture
def lock_util(memcached: Memcached) -> Iterator[types.SimpleNamespace]:
    """Provide the scheme of 2016, which tries once."""
    client = PooledClient(memcached.address)

    @contextlib.contextmanager
    def acquire_lock(key: str) -> Iterator[None]:
        lock = scheme2016.Lock(client, key)
        lock.acquire(wait_timeout=0)
        try:
            yield
        finally:
            lock.release()

    yield types.SimpleNamespace(acquire_lock=acquire_lock)
    client.close()


def test_both_locks_keep_out_those_before_and_those_after(
    lock_util: types.SimpleNamespace, service: userlock.LockService, tmp_path: Path
) -> None:
    userlock.configure(service=service)
    user = tmp_path.name
    names = BOTH_LOCKS.run({"contextlib": contextlib, "lock_util": lock_util, "userlock": userlock})
    user_lock = names["user_lock"]
    refused_there = pytest.raises(scheme2016.LockTimeout)
    refused_here = pytest.raises(userlock.LockTimeout)
    with userlock.scope():
        # A process that has not been replaced yet, and one of step 1.
        with lock_util.acquire_lock(user), refused_there, user_lock(user):
            pass
        with user_lock(user), refused_there, lock_util.acquire_lock(user):
            pass
        # One of step 1 and one of step 2.
        with user_lock(user), refused_here:
            service.acquire(user)
        lease = service.acquire(user)
        with refused_here, user_lock(user):
            pass
        service.release(lease)
        # The control: by themselves the two do not exclude each other.
        with lock_util.acquire_lock(user), userlock.global_lock(user):
            pass
