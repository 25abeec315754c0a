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

import pytest
import yaml

import emulator
from sample_app.stack import ports
from sample_app.stack.children import Child
from tests.servers import Memcached, RedisServer

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
#: Without a socket for `gunicornc` in the home directory.
QUIET = "--no-control-socket"


def read(path: str) -> Any:
    return yaml.safe_load((EXAMPLES / path).read_text())


def command_of(dockerfile: str) -> str:
    """Return the command of a container."""
    lines = (EXAMPLES / dockerfile).read_text().splitlines()
    (command,) = (line.removeprefix("CMD ") for line in lines if line.startswith("CMD "))
    return command


class Site:
    """A running example."""

    def __init__(self, url: str, log: Path) -> None:
        self._url = url
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def post(self, path: str) -> tuple[int, Any]:
        """Return status and body."""
        return self._send("POST", path, {})

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        """Return status and body."""
        return self._send("GET", path, headers)

    def _send(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, Any]:
        request = urllib.request.Request(self._url + path, method=method, headers=headers)  # noqa: S310
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, error.read()

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
    """Run the example in a folder, started by its own command."""
    port = ports.any_free()
    with emulator.start() as datastore:
        log = tmp_path / "site.log"
        child = Child(
            folder,
            ["sh", "-c", f"exec {command.removeprefix('exec ')}"],
            answers=lambda: _accepts(port),
            log_file=log,
            env={
                **os.environ,
                **datastore.env,
                **environment,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PORT": str(port),
                "no_grpc_proxy": ports.LOOPBACK,
                "GUNICORN_CMD_ARGS": f"{QUIET} {gunicorn}",
            },
            cwd=EXAMPLES / folder,
        )
        child.start()
        try:
            child.wait_until_it_answers()
            yield Site(f"http://{ports.LOOPBACK}:{port}", log)
        finally:
            child.stop()


def _accepts(port: int) -> bool:
    return not ports.is_free(port)


def test_app_engine_with_memorystore(own_memcached: Memcached, tmp_path: Path) -> None:
    app = read("appengine/app.yaml")
    store = own_memcached.url("points-production")
    with running("appengine", app["entrypoint"], tmp_path, USERLOCK_STORE=store) as site:
        assert site.post("/users/ann/points") == (200, {"points": 5})
        assert site.post_often("/users/ann/points", 16) == [200] * 16
        assert site.post("/users/ann/points") == (200, {"points": 90})
        # Only App Engine's own cron may begin the sweep. It sends GET.
        (job,) = read("appengine/cron.yaml")["cron"]
        assert site.get(job["url"])[0] == 403
        assert site.get(job["url"], **{"X-Appengine-Cron": "true"}) == (200, {"skipped": 0})
        assert site.post("/users/ann/points") == (200, {"points": 50})
        assert "degraded" not in site.log


def test_app_engine_with_its_bundled_memcache(tmp_path: Path) -> None:
    bundled = read("appengine/bundled.yaml")
    assert bundled["app_engine_apis"] is True
    with running(
        "appengine",
        bundled["entrypoint"],
        tmp_path,
        f"--config {Path(__file__).with_name('bundled_memcache.py')}",
        USERLOCK_STORE=bundled["env_variables"]["USERLOCK_STORE"],
    ) as site:
        assert site.post("/users/ann/points") == (200, {"points": 5})
        # Each worker has a memcache of its own here, so locks do not exclude across the workers:
        # conflicts are refused, and nothing is lost.
        accepted = site.post_often("/users/ann/points", 16).count(200)
        assert accepted > 0
        assert site.post("/users/ann/points") == (200, {"points": 5 * (accepted + 2)})
        assert "degraded" not in site.log


def test_without_the_stub_locks_are_degraded(tmp_path: Path) -> None:
    """The control of the test above: it would have noticed an outage of memcache."""
    bundled = read("appengine/bundled.yaml")
    store = bundled["env_variables"]["USERLOCK_STORE"]
    with running("appengine", bundled["entrypoint"], tmp_path, USERLOCK_STORE=store) as site:
        assert site.post("/users/ann/points") == (200, {"points": 5})
        assert "degraded" in site.log


@pytest.mark.parametrize("kind", ["memcached", "redis"])
def test_cloud_run(
    kind: str, own_memcached: Memcached, own_redis: RedisServer, tmp_path: Path
) -> None:
    server = own_memcached if kind == "memcached" else own_redis
    url = own_memcached.url() if kind == "memcached" else own_redis.url
    with running(
        "cloudrun",
        command_of("cloudrun/Dockerfile"),
        tmp_path,
        USERLOCK_STORE=url,
        USERLOCK_FALLBACK="datastore://?prefix=points-production&timeout=10",
    ) as site:
        assert site.post("/users/ann/points") == (200, {"points": 5})
        assert site.post_often("/users/ann/points", 16) == [200] * 16
        assert "fallback" not in site.log
        server.kill()
        # The locks are in Datastore meanwhile: in order, and each once.
        assert site.post_often("/users/ann/points", 4) == [200] * 4
        assert site.post("/users/ann/points") == (200, {"points": 110})
        assert "fallback" in site.log
