"""The library as users get it: built, installed into an empty environment, and tried out."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from sample_app.stack import ports
from tests.contract.test_readme import HANDLER, IN_A_TERMINAL
from tests.documents import ROOT
from tests.servers import Memcached
from tests.system.test_tutorial import INSTALL

pytestmark = pytest.mark.slow

PACKAGES = {"userlock": ROOT, "userlock_emulator": ROOT / "emulator"}
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
    """Provide both packages: a source archive, and a wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
    for source in PACKAGES.values():
        run(*build, source, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def project(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the folder of the tutorial, with an environment in which the wheels are installed."""
    folder = tmp_path_factory.mktemp("home")
    ours, emulator = (next(dist.glob(f"{name}-*.whl")) for name in PACKAGES)
    commands = INSTALL.text.replace("${CLONE}[", f"{ours}[").replace(
        "${CLONE}/emulator", str(emulator)
    )
    assert "CLONE" not in commands
    # Not compiled: that takes as long as the rest, and each program compiles its own modules.
    run("sh", "-ec", commands, cwd=folder, PIP_NO_COMPILE="1", PIP_QUIET="1")
    return folder / "points"


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize(
    ("name", "package"), [("userlock", "userlock"), ("userlock_emulator", "emulator")]
)
def test_a_wheel_has_the_package_and_nothing_else(dist: Path, name: str, package: str) -> None:
    tracked = run("git", "ls-files", package, cwd=ROOT).splitlines()
    beside = {f"{package}/{file}" for file in ("LICENSE", "README.md", "pyproject.toml")}
    expected = set(tracked) - beside
    (wheel,) = dist.glob(f"{name}-*.whl")
    found = {path for path in files_of(wheel) if ".dist-info/" not in path}
    assert found == expected
    assert f"{package}/py.typed" in found


def test_the_inspectors_pages_are_in_the_wheel(dist: Path) -> None:
    (wheel,) = dist.glob("userlock-*.whl")
    found = {Path(path).suffix for path in files_of(wheel) if "/inspector/" in path}
    assert {".html", ".css"} <= found


@pytest.mark.parametrize("name", PACKAGES)
def test_the_metadata_is_valid(dist: Path, name: str) -> None:
    (wheel,) = dist.glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (file,) = (path for path in archive.namelist() if path.endswith(".dist-info/METADATA"))
        raw = archive.read(file)
        (license_text,) = (
            archive.read(path)
            for path in archive.namelist()
            if path.endswith(".dist-info/licenses/LICENSE")
        )
    assert license_text == (ROOT / "LICENSE").read_bytes()
    metadata = Metadata.from_email(raw, validate=True)
    assert metadata.requires_python is not None
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description
    assert email.message_from_bytes(raw)["License-Expression"] == "Apache-2.0"


def test_the_source_archive_can_build_the_wheel(dist: Path) -> None:
    (archive,) = dist.glob("userlock-[0-9]*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"} <= names
    assert not [name for name in names if name.startswith(("tests", "sample_app"))]


def test_nothing_is_missing_or_in_conflict(project: Path) -> None:
    run(".venv/bin/pip", "check", cwd=project)
    where = run(".venv/bin/python", "-c", "import userlock; print(userlock.__file__)", cwd=project)
    assert Path(where).is_relative_to(project / ".venv")


@contextmanager
def emulator_of(project: Path) -> Iterator[str]:
    """Run the installed emulator; yield its address."""
    command = [str(project / ".venv/bin/python"), "-m", "emulator", "start", "--port", "0"]
    with subprocess.Popen(
        command, cwd=project, env=CLEAN, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().partition("=")[2]
        finally:
            process.terminate()


def test_the_handler_of_the_readme(project: Path, memcached: Memcached) -> None:
    (project / "points.py").write_text(HANDLER.text.replace("127.0.0.1:11211", memcached.address))
    port = str(ports.any_free())
    with emulator_of(project) as datastore:
        commands = IN_A_TERMINAL.text.replace("127.0.0.1:8081", datastore).replace("5001", port)
        program, call = commands.rstrip().rsplit("\n", 1)
        assert call.startswith("curl ")
        answers = run(
            "bash",
            "-c",
            # A user waits until it serves.
            'curl() { command curl -sS --retry 50 --retry-delay 1 --retry-connrefused "$@"; }\n'
            f"{program}\ntrap 'kill $!' EXIT\n{call}\n{call}",
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
