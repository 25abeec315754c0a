"""The module examples/terraform is consistent in itself, and with examples/cloudrun.

The fields of Google's provider are not checked: it cannot be had here.
"""

from __future__ import annotations

import graphlib
import json
import re
import shlex
import shutil
import subprocess
from typing import Any

import pytest
import yaml

import userlock
from tests.documents import ROOT, Page
from tests.system.examples import FILLED, fill
from userlock.outbox.engines.cloudtasks import parse

MODULE = ROOT / "examples/terraform"
TEXTS = {path.name: path.read_text() for path in sorted(MODULE.glob("*.tf"))}
TEXT = "\n".join(TEXTS.values())
CLOUD_RUN = ROOT / "examples/cloudrun"

BLOCK = re.compile(
    r'^(resource|data|variable|output) "(\w+)"(?: "(\w+)")? \{\n(.*?)^\}', re.M | re.S
)
LOCALS = re.compile(r"^locals \{\n(.*?)^\}", re.M | re.S)
REFERENCE = re.compile(r"\b(var\.\w+|local\.\w+|data\.google_\w+\.\w+|google_\w+\.\w+)")


def graph(text: str) -> dict[str, set[str]]:
    """Return what each block and each local value refers to."""
    found: dict[str, set[str]] = {}
    for kind, first, second, body in BLOCK.findall(text):
        name = {
            "resource": f"{first}.{second}",
            "data": f"data.{first}.{second}",
            "variable": f"var.{first}",
            "output": f"output.{first}",
        }[kind]
        assert name not in found, f"{name} is there twice"
        found[name] = set(REFERENCE.findall(body)) - {name}
    (values,) = LOCALS.findall(text)
    for name, value in re.findall(r"^  (\w+) += (.+?)(?=^  \w+ +=|\Z)", values, re.M | re.S):
        found[f"local.{name}"] = set(REFERENCE.findall(value))
    return found


def problems(text: str) -> list[str]:
    """Return references to nothing, variables that nobody uses, and cycles."""
    edges = graph(text)
    used = set().union(*edges.values())
    found = [f"{name} is not there" for name in used - set(edges)]
    named = used | set(REFERENCE.findall(text.split("locals {")[0]))  # of the provider
    found += [f"{name} is not used" for name in edges if name[:4] == "var." and name not in named]
    try:
        list(graphlib.TopologicalSorter(edges).static_order())
    except graphlib.CycleError as error:
        found.append(f"a cycle: {error.args[1]}")
    return found


def test_each_reference_is_of_something() -> None:
    assert len(graph(TEXT)) > 25
    assert problems(TEXT) == []


@pytest.mark.parametrize(
    ("right", "wrong", "problem"),
    [
        ("var.region", "var.regoin", "var.regoin is not there"),
        ("google_compute_network.site.id", "google_compute_network.net.id", "is not there"),
        ("floor(var.threads / 2)", "8", ""),
        ("var.replicas", "1", "var.replicas is not used"),
        ("var.ip_range", "google_memorystore_instance.locks.name", "a cycle"),
    ],
)
def test_a_mistake_is_found(right: str, wrong: str, problem: str) -> None:
    """The negative control."""
    assert right in TEXT
    found = " ".join(problems(TEXT.replace(right, wrong)))
    assert problem in found if problem else not found


def test_its_form_is_that_of_terraform() -> None:
    if shutil.which("terraform"):
        command = ["terraform", "fmt", "-check", "-diff", str(MODULE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


#: The values of an apply, by reference.
VALUES = {
    "var.project": FILLED["PROJECT"],
    "var.region": FILLED["REGION"],
    "var.name": "points",
    "local.site": f"https://{FILLED['HOST']}",
    "local.prefix": "points-production",
    "local.valkey.ip_address": "10.0.0.3",
    "local.valkey.port": "6379",
    "google_cloud_tasks_queue.jobs.name": "jobs",
    "google_service_account.jobs.email": f"jobs@{FILLED['PROJECT']}.iam.gserviceaccount.com",
}


def resource(kind: str) -> str:
    """Return the body of the only resource of a kind."""
    (found,) = (body for block, first, _, body in BLOCK.findall(TEXT) if first == kind)
    return str(found)


def local_value(name: str) -> str:
    """Return a text of the module, filled in."""
    (values,) = LOCALS.findall(TEXT)
    (text,) = re.findall(rf'^  {name} += "(.+)"$', values, re.M)
    return re.sub(r"\$\{([\w.]+)\}", lambda found: VALUES[found[1]], text)


def environment(kind: str) -> dict[str, str]:
    """Return the environment of a service or job, filled in."""
    values = {
        **VALUES,
        "local.store": local_value("store"),
        "local.queue": local_value("queue"),
        "tostring(var.timeout_seconds)": default("timeout_seconds"),
    }
    (block,) = re.findall(r"for_each = \{\n(.*?)\n +\}", resource(kind), re.S)
    return {
        name: re.sub(r"\$\{([\w.]+)\}", lambda found: values[found[1]], value.strip('"'))
        if '"' in value
        else values[value]
        for name, value in re.findall(r"^ +(\w+) += (.+)$", block, re.M)
    }


def default(variable: str) -> str:
    (found,) = re.findall(
        rf'variable "{variable}" {{.*?default += "?([\w./-]+)"?\n', TEXTS["variables.tf"], re.S
    )[:1]
    return str(found)


def container() -> Any:
    service = yaml.safe_load(fill((CLOUD_RUN / "service.yaml").read_text()))
    spec = service["spec"]["template"]["spec"]
    return spec, {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}


def test_the_service_is_that_of_the_example() -> None:
    spec, expected = container()
    found = environment("google_cloud_run_v2_service")
    store = found["USERLOCK_STORE"]
    same = {**expected, "USERLOCK_STORE": store}
    assert same.pop("SECRET_KEY") is None
    assert 'name = "SECRET_KEY"' in TEXT
    assert found == same
    assert store == expected["USERLOCK_STORE"].replace("redis://", "valkey://")
    assert default("threads") == str(spec["containerConcurrency"])
    userlock.LockService.from_url(store).close()
    address = parse(found["USERLOCK_QUEUE"])
    assert 'uri         = "${local.site}/userlock/relay"' in TEXT
    assert address.audience.replace(VALUES["local.site"], "${local.site}") in TEXT


def test_the_operator_s_job_is_that_of_the_page() -> None:
    """The command that docs/deploy.md deploys, which runs those of docs/operate.md."""
    (block,) = (
        block.text.replace("\\\n", "")
        for block in Page("docs/deploy.md").blocks
        if "gcloud run jobs deploy" in block.text
    )
    (command,) = re.findall(r"^gcloud run jobs deploy .*$", block, re.M)
    name, *options = shlex.split(command)[4:]
    said = dict(each.removeprefix("--").split("=", 1) for each in options)
    job = resource("google_cloud_run_v2_job")
    assert f'"{name}"' in job
    assert f"jobs execute {name} " in Page("docs/operate.md").text
    assert re.findall(r"max_retries += (\d+)", job) == [said["max-retries"]]
    for option in ("command", "args"):
        (listed,) = re.findall(rf"{option} += (\[.*\])", job)
        assert json.loads(listed) == said[option].split(",")
    (egress,) = re.findall(r'egress = "(\w+)"', job)
    assert egress.lower().replace("_", "-") == said["vpc-egress"]
    env = environment("google_cloud_run_v2_job")
    assert set(env) == set(re.findall(r"\b(USERLOCK_\w+)=", block))
    assert f"USERLOCK_APP={env['USERLOCK_APP']}," in block
    service = environment("google_cloud_run_v2_service")
    assert {each: env[each] for each in env.keys() & service.keys()} == {
        each: service[each] for each in ("USERLOCK_QUEUE", "USERLOCK_STORE")
    }
    assert (CLOUD_RUN / f"{env['USERLOCK_APP'].split(':')[0]}.py").is_file()


def test_queue_and_roles_are_those_of_the_script() -> None:
    script = (CLOUD_RUN / "setup.sh").read_text()
    assert set(re.findall(r"--role=(\S+)", script)) < set(re.findall(r'"(roles/[\w.]+)"', TEXT))
    assert set(re.findall(r"(\w+\.googleapis\.com)", script)) <= set(
        re.findall(r'"(\w+\.googleapis\.com)",', TEXT)
    )
    (queue,) = (body for *_, body in BLOCK.findall(TEXT) if "rate_limits" in body)
    for option, value in re.findall(r"--((?:max|min)-\S+)=(\w+)", script):
        setting = re.search(rf'{option.replace("-", "_")} += "?([^"\n]+)', queue)
        assert setting is not None, option
        threads = int(default("threads"))
        assert setting[1].replace("floor(var.threads / 2)", str(threads // 2)) == value
