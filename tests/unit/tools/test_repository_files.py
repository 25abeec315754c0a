"""Files for contributors and their tools name what exists."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.documents import ROOT
from userlock_emulator.cli import _parser

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^\.PHONY: (\S+)$", MAKEFILE, re.MULTILINE)) | {".venv/.ready-dev"}
PROJECTS = {
    name: tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
    for name in (".", "emulator")
}


def yaml_of(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def made_in(text: str) -> set[str]:
    """Return the targets of the calls of make in a text."""
    calls = re.findall(r"(?:^|`)make ([^`#;&|\n]+)", text, re.MULTILINE)
    return {word for call in calls for word in call.split() if "=" not in word}


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "README.md"])
def test_pages_name_targets(name: str) -> None:
    found = made_in((ROOT / name).read_text())
    assert {"run", "check", "test"} <= found
    assert found <= TARGETS


def test_the_workflow_names_targets_and_the_tested_pythons() -> None:
    jobs = yaml_of(".github/workflows/test.yml")["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert len(runs) == len(jobs)
    for run in runs:
        assert made_in(run)
        assert made_in(run) <= TARGETS
    for job in jobs.values():
        checkout = job["steps"][0]
        assert checkout["uses"].startswith("actions/checkout@")
        assert checkout["with"]["persist-credentials"] is False
        assert "permissions" not in job
    assert yaml_of(".github/workflows/test.yml")["permissions"] == {"contents": "read"}
    pythons = jobs["check"]["strategy"]["matrix"]["python"]
    assert PROJECTS["."]["requires-python"] == f">={pythons[0]}"


@pytest.mark.parametrize("name", PROJECTS)
def test_classifiers_claim_no_other_pythons(name: str) -> None:
    matrix = yaml_of(".github/workflows/test.yml")["jobs"]["check"]["strategy"]["matrix"]["python"]
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECTS[name]["classifiers"]))
    assert claimed
    assert set(claimed) <= set(matrix)


def test_the_servers_of_the_compose_file() -> None:
    services = yaml_of("compose.yaml")["services"]
    assert set(services) == {"memcached", "redis", "datastore"}
    for service in services.values():
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:")
    folder = ROOT / services["datastore"]["build"]
    steps = dict(line.split(" ", 1) for line in (folder / "Dockerfile").read_text().splitlines())
    (program,) = json.loads(steps["ENTRYPOINT"])
    assert program in PROJECTS[services["datastore"]["build"]]["scripts"]
    options = _parser().parse_args(json.loads(steps["CMD"]))
    assert options.host == "0.0.0.0"  # of the container
    assert steps["EXPOSE"] == str(options.port)
    assert services["datastore"]["ports"] == [f"127.0.0.1:{options.port}:{options.port}"]


# --- what is fetched is named exactly -----------------------------------------------------------

IMAGE = r"[\w./:-]+@sha256:[0-9a-f]{64}"
#: By file: what it fetches, and how that has to be named.
FETCHED = [
    (".github/workflows/test.yml", r"uses: (\S+)", r"[\w/-]+@[0-9a-f]{40}"),
    (".devcontainer/devcontainer.json", r'"image": "(.+)"', IMAGE),
    ("compose.yaml", r"image: (\S+)", IMAGE),
    ("emulator/Dockerfile", r"^FROM (.+)", IMAGE),
    ("emulator/Dockerfile", r"pip install (.+)", r".* --(require-hashes|no-build-isolation) .*"),
    ("examples/cloudrun/Dockerfile", r"^FROM (.+)", IMAGE),
    ("examples/cloudrun/requirements.txt", r"^([^#].+)", r"\./wheels/\S+|[\w[\]-]+==[\d.]+"),
    ("examples/appengine/requirements.txt", r"^([^#].+)", r"\./wheels/\S+|[\w-]+==[\d.]+"),
    ("tools/setup.sh", r"-m pip (\S+ .+) 2>", r".* --(require-hashes|no-build-isolation)"),
    ("tools/need-servers.sh", r"npm (\w+)", "ci"),
    (
        "Makefile",
        r"pip install --quiet --disable-pip-version-check (.+)",
        r"-r \$< .*--require-hashes",
    ),
]


@pytest.mark.parametrize(("name", "fetched", "exact"), FETCHED)
def test_what_is_fetched_is_named_exactly(name: str, fetched: str, exact: str) -> None:
    found = re.findall(fetched, (ROOT / name).read_text(), re.MULTILINE)
    assert found
    assert [each for each in found if not re.fullmatch(exact, each)] == []


def test_examples_name_the_wheel_of_this_version() -> None:
    version = re.search(r'"(.+)"', (ROOT / "userlock/_version.py").read_text().split("\n\n")[1])
    assert version is not None
    for name in ("appengine", "cloudrun"):
        text = (ROOT / "examples" / name / "requirements.txt").read_text()
        assert f"./wheels/userlock-{version[1]}-py3-none-any.whl[" in text


def locked(name: str) -> dict[str, str]:
    """Return the versions of a lock file, in which each has hashes."""
    found: dict[str, str] = {}
    for line in (ROOT / name).read_text().replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            said, *hashes = line.split(" --hash=")
            assert hashes, line
            assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", each) for each in hashes)
            requirement = Requirement(said)
            (pin,) = requirement.specifier
            assert pin.operator == "=="
            found[canonicalize_name(requirement.name)] = pin.version
    return found


def wanted(group: str) -> Iterator[Requirement]:
    """Yield what a group needs by pyproject.toml, with that of the two packages if they are in."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    if group not in OF_OTHERS:
        yield from map(
            Requirement, PROJECTS["."]["dependencies"] + PROJECTS["emulator"]["dependencies"]
        )
    for each in groups[group]:
        if isinstance(each, dict):
            yield from wanted(each["include-group"])
        elif (requirement := Requirement(each)).name == "userlock":
            for extra in requirement.extras:
                yield from map(Requirement, PROJECTS["."]["optional-dependencies"][extra])
        else:
            yield requirement


#: Of environments without userlock.
OF_OTHERS = ["idempotency", "appengine"]


@pytest.mark.parametrize("group", ["run", "dev", "bench", "oldest", *OF_OTHERS])
def test_the_lock_file_of_a_group_has_all_that_it_needs(group: str) -> None:
    """To write them: make lock."""
    found = locked(f"requirements/{group}.txt")
    for each in wanted(group):
        assert each.specifier.contains(found[canonicalize_name(each.name)]), each
    if group == "oldest":
        for each in map(Requirement, PROJECTS["."]["dependencies"][:2]):
            assert f">={found[each.name].removesuffix('.0')}" in str(each.specifier)


def test_the_lock_file_of_the_emulator_s_image() -> None:
    found = locked("emulator/requirements.txt")
    for each in map(Requirement, PROJECTS["emulator"]["dependencies"]):
        assert each.specifier.contains(found[canonicalize_name(each.name)]), each
    assert "hatchling" in found
