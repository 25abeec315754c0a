"""The library as users get it: built, installed into an empty environment, and tried out."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from sample_app.stack import ports
from tests.contract.test_readme import HANDLER, IN_A_TERMINAL
from tests.documents import ROOT
from tests.servers import Memcached
from tests.system.test_tutorial import INSTALL
from tools.dist import PACKAGES, build, check

pytestmark = pytest.mark.slow

#: An index shows them.
LINKS = {"Homepage", "Documentation", "Repository", "Issues", "Changelog"}
#: Programs must not find anything of this checkout.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """Return the output of a program, which must succeed."""
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env={**CLEAN, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide both packages: a source archive, and a wheel built from it.

    DIST names a folder that has them already.
    """
    built = os.environ.get("DIST")
    folder = Path(built) if built else tmp_path_factory.mktemp("dist")
    if not built:
        build(folder)
    return folder


@pytest.fixture(scope="module")
def project(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the folder of the tutorial, with an environment in which the wheels are installed.

    By their paths: an index may have others of that name.
    """
    folder = tmp_path_factory.mktemp("home")
    (library,), (emulator,) = dist.glob("userlock-*.whl"), dist.glob("userlock_emulator-*.whl")
    commands = re.sub(
        r"pip install .*", f"pip install '{library}[flask]' '{emulator}'", INSTALL.text
    )
    assert "CLONE" not in commands
    # Not compiled: that takes as long as the rest, and each program compiles its own modules.
    run("sh", "-ec", commands, cwd=folder, PIP_NO_COMPILE="1", PIP_QUIET="1")
    return folder / "points"


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_has_the_package_and_nothing_else(dist: Path, name: str) -> None:
    expected = set(run("git", "ls-files", name, cwd=ROOT / PACKAGES[name]).splitlines())
    (wheel,) = dist.glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {path for path in archive.namelist() if ".dist-info/" not in path}
    assert found == expected
    assert f"{name}/py.typed" in found


def of_dist_info(dist: Path, name: str, file: str) -> bytes:
    (wheel,) = dist.glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (each for each in archive.namelist() if each.endswith(f".dist-info/{file}"))
        return archive.read(path)


def metadata_of(dist: Path, name: str) -> Metadata:
    return Metadata.from_email(of_dist_info(dist, name, "METADATA"), validate=True)


@pytest.mark.parametrize("name", PACKAGES)
def test_the_metadata_is_valid(dist: Path, name: str) -> None:
    assert of_dist_info(dist, name, "licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    metadata = metadata_of(dist, name)
    assert metadata.requires_python is not None
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.author == "The userlock developers"
    assert set(metadata.project_urls or {}) == LINKS
    assert "Typing :: Typed" in (metadata.classifiers or [])


def test_an_index_takes_them(dist: Path) -> None:
    check(dist)


@pytest.mark.parametrize("name", PACKAGES)
def test_links_of_the_readme_work_on_an_index(dist: Path, name: str) -> None:
    """There they have nothing to be relative to."""
    text = metadata_of(dist, name).description or ""
    targets = re.findall(r"\]\(([^)#]+)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert not [each for each in targets if not each.startswith("https://")]


def test_the_same_commit_gives_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    build(tmp_path)
    assert digests(tmp_path) == digests(dist)


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def test_the_source_archive_can_build_the_wheel(dist: Path) -> None:
    (archive,) = dist.glob("userlock-[0-9]*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    tracked = set(run("git", "ls-files", cwd=ROOT).splitlines())
    ignored = {name for name in tracked if name.startswith((".ci/", ".github/", ".devcontainer/"))}
    assert tracked - ignored <= names
    assert "tests/conftest.py" in names


def test_nothing_is_missing_or_in_conflict(project: Path) -> None:
    run(".venv/bin/pip", "check", cwd=project)
    where = run(".venv/bin/python", "-c", "import userlock; print(userlock.__file__)", cwd=project)
    assert Path(where).is_relative_to(project / ".venv")


def test_the_handler_of_the_readme(project: Path) -> None:
    """In the environment into which the packages were installed."""
    numbers = {number: str(ports.any_free()) for number in ("8081", "11211", "5001")}

    def elsewhere(text: str) -> str:
        for number, free in numbers.items():
            text = text.replace(number, free)
        return text

    (project / "points.py").write_text(elsewhere(HANDLER.text))
    program, call = elsewhere(IN_A_TERMINAL.text).rstrip().rsplit("\n", 1)
    assert call.startswith("curl ")
    answers = run(
        "bash",
        "-c",
        f"trap 'kill $(jobs -p)' EXIT\n. .venv/bin/activate\n{program}\n{call}\n{call}",
        cwd=project,
    )
    assert [json.loads(line) for line in answers.splitlines() if line.startswith("{")] == [
        {"points": 5},
        {"points": 10},
    ]


def test_the_command(project: Path, memcached: Memcached) -> None:
    output = run(
        ".venv/bin/userlock", "doctor", "--json", cwd=project, USERLOCK_STORE=memcached.url()
    )
    assert json.loads(output)["verdict"] in ("ok", "warning")
