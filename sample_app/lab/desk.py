"""Runs that were started on the page: processes of their own, kept as files.

Any worker process may show a run, so its whole state is its file: lines of progress and finally
the outcome. The process that writes it holds an advisory lock on it until it ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sample_app.lab.plan import Plan
from sample_app.stack.services import ROOT

_MOST_KEPT = 20
_NAME = re.compile(r"\d{10}-[0-9a-f]{6}")


class Busy(Exception):
    """Another run is in progress. Two at a time would distort each other's figures."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The state of a run.

    Attributes:
        name: the name in URLs.
        plan: the plan of the run.
        done: number of answered requests.
        document: the result, as from `outcome.document`; None before the end.
        trouble: the reason for a failure; empty if there is none.
    """

    name: str
    plan: Plan
    done: int
    document: dict[str, Any] | None
    trouble: str

    @property
    def over(self) -> bool:
        return self.document is not None or bool(self.trouble)


class Desk:
    """The runs of one folder.

    Args:
        folder: created when needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, plan: Plan) -> str:
        """Start a run and return its name.

        Raises:
            Busy: another run is in progress.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            for run in self.runs():
                if not run.over:
                    raise Busy(run.name)
            name = f"{int(time.time()):010d}-{secrets.token_hex(3)}"
            with (self._folder / f"{name}.jsonl").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # inherited with the file
                file.write(json.dumps({"plan": dataclasses.asdict(plan)}) + "\n")
                file.flush()
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "sample_app", "lab"),
                        *("--json", "--progress", *plan.options),
                    ],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._forget_the_oldest()
        return name

    def runs(self) -> list[Run]:
        """Return all stored runs, the latest first."""
        names = sorted((file.stem for file in self._folder.glob("*.jsonl")), reverse=True)
        return [run for run in map(self.find, names) if run is not None]

    def find(self, name: str) -> Run | None:
        """Return the run of that name, if there is one."""
        if not _NAME.fullmatch(name):
            return None
        # Asked before the file is read: a process that ends in between has written its outcome.
        at_work = self._is_at_work(name)
        try:
            lines = (self._folder / f"{name}.jsonl").read_text().splitlines()
            plan = Plan.of({key: str(value) for key, value in json.loads(lines[0])["plan"].items()})
        except (OSError, ValueError, LookupError):
            return None
        done, document, said = 0, None, ""
        for line in lines[1:]:
            try:
                entry = json.loads(line)
            except ValueError:
                said = line
                continue
            if "outcome" in entry:
                document = entry
            else:
                done = entry.get("done", done)
        trouble = ""
        if document is None and not at_work:
            trouble = said.removeprefix("error: ") or "The run was stopped before its end."
        return Run(name=name, plan=plan, done=done, document=document, trouble=trouble)

    def _is_at_work(self, name: str) -> bool:
        try:
            with (self._folder / f"{name}.jsonl").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Ensure that one worker at a time starts runs."""
        with (self._folder / "starting").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _forget_the_oldest(self) -> None:
        for file in sorted(self._folder.glob("*.jsonl"), reverse=True)[_MOST_KEPT:]:
            file.unlink(missing_ok=True)
