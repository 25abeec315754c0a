"""The terminals of a reader who types what a page shows."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sample_app.stack import ports
from tests.documents import Block
from tests.waiting import wait_until

#: The ports on the pages.
_PORTS = ("8081", "11211", "5001", "8123")


class Desk:
    """The terminals of a user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = {port: str(ports.any_free()) for port in _PORTS}
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": programs, "PYTHONUNBUFFERED": "1"}
        self.env.pop("COLUMNS", None)  # pytest's workers set it, and tables would be cut

    def here(self, text: str) -> str:
        """Replace the ports with free ones."""
        return re.sub(rf"\b({'|'.join(_PORTS)})\b", lambda match: self._ports[match[0]], text)

    def write(self, block: Block) -> Path:
        """Create the file that the block names in its first line."""
        path = self.folder / block.text.split("\n", 1)[0].removeprefix("# ")
        path.write_text(self.here(block.text))
        return path

    def run(self, line: str) -> str:
        """Run a command; return its output."""
        done = subprocess.run(
            ["bash", "-c", self.here(line)],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout

    def follow(self, block: Block, same: Callable[[str], str] = str.strip) -> None:
        """Type the commands of a block and compare their output, by what is the same each time."""
        for line, shown in block.commands():
            assert same(self.run(f"{line}\n")) == same(shown), line

    @contextmanager
    def goes_on(self, line: str, port: str, log: Path) -> Iterator[None]:
        """Run a command in a terminal of its own, from its start of service until Ctrl-C."""
        address = ("127.0.0.1", int(self._ports[port]))

        def serves() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(address) == 0

        with (
            log.open("w") as output,
            subprocess.Popen(
                shlex.split(self.here(line)),
                cwd=self.folder,
                env=self.env,
                stdout=output,
                stderr=subprocess.STDOUT,
            ) as process,
        ):
            try:
                wait_until(serves, seconds=60)
                yield
            finally:
                process.terminate()

    def export(self, block: Block) -> None:
        """Set the variables of a block."""
        for assignment in shlex.split(self.here(block.text), comments=True):
            name, equals, value = assignment.partition("=")
            if equals:
                self.env[name] = value
