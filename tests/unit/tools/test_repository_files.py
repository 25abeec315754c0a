"""Files for contributors and their tools name what exists."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from typing import Any

import pytest
import yaml

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
    pythons = jobs["check"]["strategy"]["matrix"]["python"]
    assert PROJECTS["."]["requires-python"] == f">={pythons[0]}"


@pytest.mark.parametrize("name", PROJECTS)
def test_classifiers_claim_no_other_pythons(name: str) -> None:
    matrix = yaml_of(".github/workflows/test.yml")["jobs"]["check"]["strategy"]["matrix"]["python"]
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECTS[name]["classifiers"]))
    assert claimed
    assert set(claimed) <= set(matrix)


def test_both_packages_have_the_same_addresses() -> None:
    ours, emulators = PROJECTS["."]["urls"], PROJECTS["emulator"]["urls"]
    assert emulators == {**ours, "Documentation": f"{ours['Documentation']}/emulator.html"}
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    readme = config["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for each in readme["substitutions"]:
        assert f"{ours['Repository']}/" in each["replacement"]


def test_commit_hooks_are_the_formatter_and_linter_of_make_check() -> None:
    (repository,) = yaml_of(".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"].removeprefix(".venv/") for hook in repository["hooks"]]
    assert entries == ["bin/ruff check --fix", "bin/ruff format"]
    for entry in entries:
        assert f"$(VENV)/{entry.removesuffix(' --fix')} " in MAKEFILE


def test_the_container_for_development() -> None:
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    program, *targets = shlex.split(container["postCreateCommand"])
    assert program == "make"
    assert set(targets) <= TARGETS


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
