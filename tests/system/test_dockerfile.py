"""The Dockerfiles of the example and of the emulator, step by step, without Docker.

`FROM` has to be a Python that the library supports; this machine's stands for it. The folder of the
image is a folder here, and `pip` is that of an empty virtual environment.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_app.stack import ports
from tests.documents import ROOT
from tests.system.examples import EXAMPLES, environment_of, read
from tools.dist import build

pytestmark = pytest.mark.slow


def steps(dockerfile: Path) -> Iterator[tuple[str, str]]:
    """Yield the instructions and their arguments."""
    for line in dockerfile.read_text().splitlines():
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


class Image:
    """An image under construction.

    Args:
        root: stands for the root folder of the image.
    """

    def __init__(self, context: Path, root: Path) -> None:
        self._context = context
        self._root = root
        self._folder = root
        self.environment: dict[str, str] = {}
        self.command = ""
        self.entry_point = ""
        self.health_check = ""

    def build(self) -> None:
        """Carry out the instructions; an unknown one is an error."""
        for word, rest in steps(self._context / "Dockerfile"):
            getattr(self, f"_{word.lower()}")(rest)

    def run(self, command: str, **environment: str) -> None:
        """Run a command in the image."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        subprocess.run(
            ["sh", "-ec", command],
            cwd=self._folder,
            env={**clean, **self.environment, **environment, "PATH": self.path},
            check=True,
        )

    def _from(self, image: str) -> None:
        version = re.fullmatch(r"python:(3\.\d+)-slim@sha256:[0-9a-f]{64}", image)
        assert version is not None
        package = self._context if (self._context / "pyproject.toml").exists() else ROOT
        document = tomllib.loads((package / "pyproject.toml").read_text())
        needed = document["project"]["requires-python"]
        assert int(version[1].removeprefix("3.")) >= int(needed.removeprefix(">=3."))
        subprocess.run([sys.executable, "-m", "venv", self._root / "venv"], check=True)

    def _env(self, setting: str) -> None:
        name, _, value = setting.partition("=")
        self.environment[name] = value

    def _workdir(self, folder: str) -> None:
        self._folder = self._root / folder.removeprefix("/")
        self._folder.mkdir()

    def _copy(self, paths: str) -> None:
        assert paths == ". ."
        shutil.copytree(self._context, self._folder, dirs_exist_ok=True)

    def _run(self, command: str) -> None:
        self.run(command)

    def _user(self, name: str) -> None:
        assert name == "nobody"

    def _cmd(self, command: str) -> None:
        self.command = command

    def _entrypoint(self, command: str) -> None:
        self.entry_point = command

    def _expose(self, port: str) -> None:
        assert port.isdecimal()

    def _healthcheck(self, check: str) -> None:
        self.health_check = check.partition(" CMD ")[2]

    @property
    def path(self) -> str:
        """Return the PATH in the image."""
        return f"{self._root}/venv/bin:{os.environ['PATH']}"


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """Provide the example with the wheels beside it, as the page on production says."""
    folder = tmp_path / "context"
    shutil.copytree(EXAMPLES / "cloudrun", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "wheels").mkdir()
    build(folder / "wheels")
    return folder


def test_it_builds_and_its_command_finds_the_app(context: Path, tmp_path: Path) -> None:
    image = Image(context, tmp_path)
    image.build()
    variables = environment_of(read("cloudrun/service.yaml"))
    program, _, app = image.command.removeprefix("exec ").rpartition(" ")
    image.run(f"{program} --check-config {app}", PORT="8080", **variables)
    image.run("pip check")
    image.run("python -c 'import sys, userlock; assert userlock.__file__.startswith(sys.prefix)'")


def test_the_emulator_builds_serves_and_is_healthy(tmp_path: Path) -> None:
    context = tmp_path / "context"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "emulator", context, ignore=ignored)
    image = Image(context, tmp_path)
    image.build()
    image.run("pip check")
    (program,), arguments = json.loads(image.entry_point), json.loads(image.command)
    port = str(ports.any_free())
    assert arguments.count("0.0.0.0:8081") == image.health_check.count("127.0.0.1:8081") == 1
    check = image.health_check.replace("8081", port)
    arguments[arguments.index("0.0.0.0:8081")] = f"127.0.0.1:{port}"
    with subprocess.Popen(
        [tmp_path / "venv/bin" / program, *arguments],
        cwd=tmp_path,
        env={"PATH": image.path},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(f"=127.0.0.1:{port}\n")
        image.run(check)
        process.terminate()
        assert process.wait(20) == 0
    with pytest.raises(subprocess.CalledProcessError):
        image.run(check)  # the negative control
