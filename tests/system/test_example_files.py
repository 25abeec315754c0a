"""The examples' files agree with each other, and with the endpoints that they call."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.examples import EXAMPLES, FILLED, environment_of, fill, run_setup
from userlock.contrib.outbox_endpoints import OutboxEndpoints
from userlock.outbox import Outbox
from userlock.outbox.engines.cloudtasks import JOBS_PATH, Address, parse

with warnings.catch_warnings():  # of its YAML library
    warnings.simplefilter("ignore", PendingDeprecationWarning)
    from google.appengine.api import croninfo, queueinfo

PROJECT, REGION, HOST = FILLED["PROJECT"], FILLED["REGION"], FILLED["HOST"]
APP = f"points@{PROJECT}.iam.gserviceaccount.com"
JOBS = f"jobs@{PROJECT}.iam.gserviceaccount.com"

#: The texts of a folder, by name.
Texts = dict[str, str]


def load(text: str) -> Any:
    return yaml.safe_load(fill(text))


def no_header(name: str) -> None:
    return None


def methods(url: str, path: str) -> str:
    """Return the methods that the endpoints of a queue's outbox take at an address."""
    outbox = Outbox(url)
    endpoints = OutboxEndpoints(outbox)
    answer = endpoints.answer("PUT", path, no_header, lambda _: b"", lambda _: nullcontext())
    outbox.close()
    assert answer is not None, f"there is no endpoint at {path}"
    assert answer.status == 405
    return answer.headers["Allow"]


def check_app_engine(texts: Texts, _: Path) -> None:
    """Raise some error unless the files agree."""
    (queue,) = queueinfo.LoadSingleQueue(fill(texts["queue.yaml"])).queue
    (relay, _sweep) = croninfo.LoadSingleCron(fill(texts["cron.yaml"])).cron
    for name in ("app.yaml", "bundled.yaml"):
        app = load(texts[name])
        assert "service" not in app, "the queue and cron call the default service"
        url = environment_of(app)["USERLOCK_QUEUE"]
        assert parse(url) == Address(PROJECT, REGION, queue.name)
        assert "POST" in methods(url, JOBS_PATH)
        assert "GET" in methods(url, relay.url), "App Engine's cron sends GET"
        threads = app["automatic_scaling"]["max_concurrent_requests"]
        assert queue.max_concurrent_requests == threads // 2
    assert relay.schedule == "every 1 minutes"
    assert (queue.rate, queue.bucket_size) == ("50/s", 50)
    retry = queue.retry_parameters
    assert (retry.task_retry_limit, retry.min_backoff_seconds) == (3, 5)


def check_cloud_run(texts: Texts, folder: Path) -> None:
    """Raise some error unless the files agree."""
    service = load(texts["service.yaml"])
    url = environment_of(service)["USERLOCK_QUEUE"]
    address = parse(url)
    site = f"https://{HOST}"
    target = f"{site}{JOBS_PATH}"
    assert address == Address(PROJECT, REGION, "jobs", target, JOBS, target)
    assert service["metadata"]["annotations"] == {"run.googleapis.com/invoker-iam-disabled": "true"}
    spec = service["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == APP
    relay = f"{site}/userlock/relay"
    for each in (target, relay):
        assert "POST" in methods(url, each.removeprefix(site))

    there = {"project": PROJECT, "location": REGION}
    may_use = {"member": f"serviceAccount:{APP}"}
    binding = "add-iam-policy-binding"
    calls = run_setup(texts["setup.sh"], folder)
    assert calls == {
        "services enable cloudtasks.googleapis.com": (
            "services enable cloudtasks.googleapis.com cloudscheduler.googleapis.com",
            {"project": PROJECT},
        ),
        "iam service-accounts create": ("iam service-accounts create jobs", {"project": PROJECT}),
        "tasks queues create": (
            f"tasks queues create {address.queue}",
            {
                **there,
                "max-dispatches-per-second": "50",
                "max-concurrent-dispatches": f"{spec['containerConcurrency'] // 2}",
                "max-attempts": "3",
                "min-backoff": "5s",
            },
        ),
        f"tasks queues {binding}": (
            f"tasks queues {binding} {address.queue}",
            {**there, **may_use, "role": "roles/cloudtasks.enqueuer"},
        ),
        f"iam service-accounts {binding}": (
            f"iam service-accounts {binding} {address.service_account}",
            {"project": PROJECT, **may_use, "role": "roles/iam.serviceAccountUser"},
        ),
        "services enable": (
            "services enable telemetry.googleapis.com",
            {"project": PROJECT},
        ),
        f"projects {binding}": (
            f"projects {binding} {PROJECT}",
            {**may_use, "role": "roles/telemetry.metricsWriter"},
        ),
        "scheduler jobs create http": (
            "scheduler jobs create http relay",
            {
                **there,
                "schedule": "* * * * *",
                "uri": relay,
                "http-method": "POST",
                "oidc-service-account-email": address.service_account,
                "oidc-token-audience": address.audience,
            },
        ),
    }


@pytest.mark.parametrize(
    ("folder", "check", "names"),
    [
        ("appengine", check_app_engine, ("queue.yaml", "cron.yaml", "app.yaml", "bundled.yaml")),
        ("cloudrun", check_cloud_run, ("setup.sh", "service.yaml")),
    ],
)
def test_the_files_agree(
    tmp_path: Path, folder: str, check: Callable[[Texts, Path], None], names: tuple[str, ...]
) -> None:
    check({name: (EXAMPLES / folder / name).read_text() for name in names}, tmp_path)


def test_the_script_is_for_any_shell() -> None:
    script = EXAMPLES / "cloudrun/setup.sh"
    for tool in ("sh -n", "bash -n", "shellcheck"):
        if shutil.which(tool.split()[0]):
            subprocess.run([*tool.split(), str(script)], check=True, timeout=60)
