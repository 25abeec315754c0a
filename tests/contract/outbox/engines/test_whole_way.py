"""A job's whole way: staged in a transaction, through an engine, to its run."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flask
import pytest
import werkzeug.serving
from google.cloud import ndb

import userlock
from sample_app.stack import ports
from tests.servers import RedisServer
from userlock.contrib.flask import UserLock
from userlock.outbox import Outbox
from userlock.outbox.waking import Waker
from userlock.stores import MemoryStore
from userlock_emulator import tasks

QUEUE = "projects/shop/locations/here/queues/jobs"
ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the engine as long as it takes: a busy machine is not the subject here."""
    monkeypatch.setattr(Waker.wake, "__kwdefaults__", {"timeout": 30.0})


@contextmanager
def served(app: Any, port: int) -> Iterator[None]:
    server = werkzeug.serving.make_server("127.0.0.1", port, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_cloud_tasks_and_the_endpoint(
    ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue's URL is all that the app says: who may call follows from it."""
    ran: list[str] = []
    port = ports.any_free()
    with tasks.start(queues=[QUEUE]) as cloud_tasks:
        for name, value in cloud_tasks.env.items():
            monkeypatch.setenv(name, value)
        outbox = Outbox(
            f"cloudtasks://shop/here/jobs?target=http://127.0.0.1:{port}"
            f"&service_account=jobs@shop.iam.gserviceaccount.com"
        )

        @outbox.job
        def greet(user_id: str) -> None:
            ran.append(user_id)

        app = flask.Flask(__name__)
        service = userlock.LockService(MemoryStore())
        UserLock(app, client=ndb_client, service=service, outbox=outbox)

        @app.post("/<user_id>")
        def stage(user_id: str) -> str:
            with userlock.global_lock(user_id):
                return ndb.transaction(lambda: greet.stage(user_id)).owner  # type: ignore[no-any-return]

        with served(app, port):
            client = app.test_client()
            for user_id in ("ann", "ben"):
                assert client.post(f"/{user_id}").status_code == 200
            cloud_tasks.wait_empty()
        outbox.close()
    assert sorted(ran) == ["ann", "ben"]
    with ndb_client.context():
        assert outbox.relay().woken == 0, "the rows are gone"


@pytest.mark.parametrize("kind", ["Worker", pytest.param("SimpleWorker", marks=pytest.mark.slow)])
def test_rq_and_its_worker(
    ndb_client: ndb.Client, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """One forks for each job, and imports the app in the child."""
    monkeypatch.setenv("TEST_RQ", own_redis.address)
    monkeypatch.delitem(sys.modules, "tests.contract.outbox.engines.rq_app", raising=False)
    app: Any = importlib.import_module("tests.contract.outbox.engines.rq_app")
    with ndb_client.context():
        for user_id in ("ann", "ann", "ben"):
            app.count.stage_now(user_id)
    worker = [
        *(sys.executable, "-m", "rq.cli", "worker", "--burst", "--url", own_redis.url),
        *("--worker-class", f"userlock.outbox.engines.rq.{kind}", "userlock"),
    ]
    environment = {"USERLOCK_OUTBOX": f"{app.__name__}:outbox", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        worker,
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    with ndb_client.context():
        counts = {each: app.Account.get_by_id(each) for each in ("ann", "ben")}
        assert {name: found and found.count for name, found in counts.items()} == {
            "ann": 2,
            "ben": 1,
        }, done.stderr
    app.outbox.close()
