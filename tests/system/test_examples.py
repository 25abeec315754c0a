"""The deployable examples: run here by their own files, with real servers."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flask
import grpc
import pytest
from flask.sessions import SecureCookieSessionInterface
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

import userlock_emulator
from sample_app.stack import ports
from sample_app.stack.children import Child
from tests.servers import Memcached, RedisServer
from tests.system.examples import EXAMPLES, FILLED, environment_of, read, run_setup
from tests.waiting import wait_until
from userlock_emulator import tasks

#: Without a socket for `gunicornc` in the home directory.
QUIET = "--no-control-socket"
QUEUE = f"projects/{FILLED['PROJECT']}/locations/{FILLED['REGION']}/queues/jobs"
BUNDLED = f"--config {Path(__file__).with_name('bundled_memcache.py')}"
CRON = {"X-Appengine-Cron": "true"}
SECRET = "correct-horse-battery-staple"
MAIL = "mail to ann: 50 points"


def command_of(dockerfile: str) -> str:
    """Return the command of a container."""
    lines = (EXAMPLES / dockerfile).read_text().splitlines()
    (command,) = (line.removeprefix("CMD ") for line in lines if line.startswith("CMD "))
    return command


# Made once, by one thread: in Python 3.11, routes that are compiled in two threads at once can
# fail ("AST constructor recursion depth mismatch").
SIGNING = flask.Flask("signer")
SIGNING.secret_key = SECRET


def session_of(user_id: str) -> str:
    """Return the cookie of a session, as the example's Flask signs it."""
    signer = SecureCookieSessionInterface().get_signing_serializer(SIGNING)
    assert signer is not None
    return str(signer.dumps({"user_id": user_id}))


class Site:
    """A running example, with its queue."""

    def __init__(self, url: str, log: Path, cloud_tasks: tasks.CloudTasks) -> None:
        self._url = url
        self._log = log
        self.cloud_tasks = cloud_tasks

    @property
    def log(self) -> str:
        return self._log.read_text()

    def post(self, path: str, **headers: str) -> tuple[int, Any]:
        """Return status and body."""
        return self._send("POST", path, headers)

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        """Return status and body."""
        return self._send("GET", path, headers)

    def _send(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, Any]:
        if path.startswith("/users/"):
            headers = {"Cookie": f"session={session_of(path.split('/')[2])}", **headers}
        request = urllib.request.Request(self._url + path, method=method, headers=headers)  # noqa: S310
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def call_as_scheduled(self, options: dict[str, str]) -> None:
        """Call as Cloud Scheduler does: a task stands for it, with the same kind of token."""
        site = f"https://{FILLED['HOST']}"
        audience, account = options["oidc-token-audience"], options["oidc-service-account-email"]
        request = tasks_v2.HttpRequest(
            url=options["uri"].replace(site, self._url),
            http_method=options["http-method"],
            oidc_token=tasks_v2.OidcToken(
                service_account_email=account, audience=audience.replace(site, self._url)
            ),
        )
        with grpc.insecure_channel(self.cloud_tasks.host) as channel:
            client = tasks_v2.CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))
            client.create_task(parent=QUEUE, task=tasks_v2.Task(http_request=request))

    def post_often(self, path: str, times: int) -> list[int]:
        """Post concurrently, again after a 429; return the statuses."""

        def post(_: int) -> int:
            status = 429
            while status == 429:  # a process lets five requests of one user wait
                status, _answer = self.post(path)
            return status

        with ThreadPoolExecutor(times) as threads:
            return list(threads.map(post, range(times)))


@contextmanager
def running(
    folder: str, command: str, tmp_path: Path, gunicorn: str = "", **environment: str
) -> Iterator[Site]:
    """Run the example in a folder, started by its own command, as on its platform."""
    port = ports.any_free()
    address = f"{ports.LOOPBACK}:{port}"
    queue = environment["USERLOCK_QUEUE"].replace(f"https://{FILLED['HOST']}", f"http://{address}")
    with (
        userlock_emulator.start() as datastore,
        tasks.start(queues=[QUEUE], app_engine=address) as cloud_tasks,
    ):
        log = tmp_path / "site.log"
        child = Child(
            folder,
            ["sh", "-c", f"exec {command.removeprefix('exec ')}"],
            answers=lambda: _accepts(port),
            log_file=log,
            env={
                **os.environ,
                **datastore.env,
                **cloud_tasks.env,
                **environment,
                "USERLOCK_QUEUE": queue,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PORT": str(port),
                "SECRET_KEY": SECRET,
                "no_grpc_proxy": ports.LOOPBACK,
                "GUNICORN_CMD_ARGS": f"{QUIET} {gunicorn}",
            },
            cwd=EXAMPLES / folder,
        )
        child.start()
        try:
            child.wait_until_it_answers()
            yield Site(f"http://{address}", log, cloud_tasks)
        finally:
            child.stop()


def _accepts(port: int) -> bool:
    return not ports.is_free(port)


def app_engine(file: str, tmp_path: Path, gunicorn: str = "", **changes: str) -> Any:
    """Run the example for App Engine, with the environment of its file."""
    app = read(f"appengine/{file}")
    environment = {"GAE_ENV": "standard", **environment_of(app), **changes}
    return running("appengine", app["entrypoint"], tmp_path, gunicorn, **environment)


def cloud_run(tmp_path: Path, store: str) -> Any:
    """Run the example for Cloud Run, with the environment of its file."""
    environment = {
        **environment_of(read("cloudrun/service.yaml")),
        "USERLOCK_STORE": store,
        "USERLOCK_FALLBACK": "datastore://?prefix=points-production&timeout=10",
    }
    return running("cloudrun", command_of("cloudrun/Dockerfile"), tmp_path, **environment)


def test_app_engine_with_memorystore(own_memcached: Memcached, tmp_path: Path) -> None:
    store = own_memcached.url("points-production")
    with app_engine("app.yaml", tmp_path, USERLOCK_STORE=store) as site:
        assert site.post("/users/bob/points") == (200, {"points": 5})
        assert site.post_often("/users/bob/points", 16) == [200] * 16
        assert site.post("/users/bob/points") == (200, {"points": 90})
        # Only App Engine's own cron may begin the sweep. It sends GET.
        (_relay, sweep) = read("appengine/cron.yaml")["cron"]
        assert site.get(sweep["url"])[0] == 403
        assert site.get(sweep["url"], **CRON) == (200, {"skipped": 0})
        assert site.post("/users/bob/points") == (200, {"points": 50})
        assert site.post("/users/bob/points", Cookie="session=")[0] == 403
        jobs_arrive(site)
        assert "degraded" not in site.log


@pytest.mark.slow
def test_app_engine_with_its_bundled_memcache(tmp_path: Path) -> None:
    assert read("appengine/bundled.yaml")["app_engine_apis"] is True
    with app_engine("bundled.yaml", tmp_path, BUNDLED) as site:
        assert site.post("/users/bob/points") == (200, {"points": 5})
        # Each worker has a memcache of its own here, so locks do not exclude across the workers:
        # conflicts are refused, and nothing is lost.
        accepted = site.post_often("/users/bob/points", 16).count(200)
        assert accepted > 0
        assert site.post("/users/bob/points") == (200, {"points": 5 * (accepted + 2)})
        jobs_arrive(site)
        assert "degraded" not in site.log


@pytest.mark.slow
def test_without_the_stub_locks_are_degraded(tmp_path: Path) -> None:
    """The control of the tests with it: they would have noticed an outage of memcache."""
    with app_engine("bundled.yaml", tmp_path) as site:
        assert site.post("/users/ann/points") == (200, {"points": 5})
        assert "degraded" in site.log


def jobs_arrive(site: Site) -> None:
    """Let jobs be delivered, by App Engine's own requests alone."""
    (relay, _sweep) = read("appengine/cron.yaml")["cron"]
    stage_a_job(site)
    assert site.get(relay["url"])[0] == 403
    assert site.post("/userlock/jobs")[0] == 403
    assert site.get(relay["url"], **CRON)[0] == 200
    site.cloud_tasks.wait_empty()
    assert site.log.count(MAIL) == 1
    # The engine misses a job; the relay does not.
    with site.cloud_tasks.faults.outage(3600):
        stage_a_job(site)
    assert site.log.count(MAIL) == 1
    wait_until(lambda: site.get(relay["url"], **CRON)[1]["woken"], 30)  # a breaker is open
    site.cloud_tasks.wait_empty()
    assert site.log.count("mail to ann") == 2


@pytest.mark.slow
def test_elsewhere_app_engine_s_headers_prove_nothing(
    own_memcached: Memcached, tmp_path: Path
) -> None:
    """The control: the same headers, not removed from requests of others."""
    store = own_memcached.url("points-production")
    with app_engine("app.yaml", tmp_path, USERLOCK_STORE=store, GAE_ENV="") as site:
        stage_a_job(site)
        assert site.get("/userlock/relay", **CRON)[0] == 403
        assert site.post("/userlock/jobs", **{"X-AppEngine-QueueName": "jobs"})[0] == 403
        site.cloud_tasks.wait_idle()
        assert MAIL not in site.log


@pytest.mark.parametrize("kind", ["memcached", pytest.param("redis", marks=pytest.mark.slow)])
def test_cloud_run(
    kind: str, own_memcached: Memcached, own_redis: RedisServer, tmp_path: Path
) -> None:
    server = own_memcached if kind == "memcached" else own_redis
    url = own_memcached.url() if kind == "memcached" else own_redis.url
    with cloud_run(tmp_path, url) as site:
        stage_a_job(site)
        site.cloud_tasks.wait_empty()
        assert site.log.count(MAIL) == 1
        strangers = {"X-AppEngine-QueueName": "jobs", "X-CloudTasks-QueueName": "jobs", **CRON}
        for path in ("/userlock/jobs", "/userlock/relay"):
            assert site.post(path)[0] == 401
            assert site.post(path, **strangers)[0] == 401
            assert site.get(path, **strangers)[0] == 405
        # The engine misses a job. The schedule calls the relay, by the options of `setup.sh`.
        with site.cloud_tasks.faults.outage(3600):
            stage_a_job(site)
        assert "mail to ann: 100 points" not in site.log
        setup = run_setup((EXAMPLES / "cloudrun/setup.sh").read_text(), tmp_path)

        def relayed() -> bool:
            site.call_as_scheduled(setup["scheduler jobs create http"].options)
            site.cloud_tasks.wait_empty()
            return "mail to ann: 100 points" in site.log

        wait_until(relayed, 30)  # a breaker is open
        assert site.log.count("mail to ann") == 2

        assert site.post("/users/bob/points") == (200, {"points": 5})
        assert site.post_often("/users/bob/points", 16) == [200] * 16
        assert "fallback" not in site.log
        server.kill()
        # The locks are in Datastore meanwhile: in order, and each once.
        assert site.post_often("/users/bob/points", 4) == [200] * 4
        assert site.post("/users/bob/points") == (200, {"points": 110})
        assert "fallback" in site.log


def stage_a_job(site: Site) -> None:
    """Bring a user to the next 50 points."""
    points = 1
    while points % 50:
        status, answer = site.post("/users/ann/points")
        assert status == 200
        points = answer["points"]
