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

from sample_app.lab.plan import CrashPlan, Plan, options_of, stored_plan
from sample_app.stack.services import ROOT

MOST_KEPT = 20
_NAME = re.compile(r"\d{10}-[0-9a-f]{6}")


class Busy(Exception):
    """Another run is in progress. Two at a time would distort each other's figures."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The state of a run of one plan, or of several that differ in their protection.

    Attributes:
        name: the name in URLs.
        plans: the plans, which run one after the other.
        done: number of answered requests, of all plans.
        documents: the results so far, as from `outcome.document`, in the order of the plans.
        trouble: the reason for a failure; empty if there is none.
        output: what else its process wrote before it failed.
    """

    name: str
    plans: tuple[Plan | CrashPlan, ...]
    done: int
    documents: tuple[dict[str, Any], ...]
    trouble: str
    output: str = ""

    @property
    def over(self) -> bool:
        return self.complete or bool(self.trouble)

    @property
    def complete(self) -> bool:
        """Return whether all results are there."""
        return len(self.documents) == len(self.plans)

    @property
    def seconds(self) -> int:
        """Return the time since its start, in seconds."""
        return int(time.time()) - int(self.name.partition("-")[0])

    @property
    def in_all(self) -> int:
        """Return the total number of requests."""
        return sum(plan.in_all for plan in self.plans)

    @property
    def title(self) -> str:
        """Return a readable name."""
        return self.plans[0].title if len(self.plans) == 1 else "all four protections"


class Desk:
    """The runs of one folder.

    Args:
        folder: created when needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, *plans: Plan | CrashPlan) -> str:
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
                header = {"plans": [dataclasses.asdict(plan) for plan in plans]}
                file.write(json.dumps(header) + "\n")
                file.flush()
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "sample_app", "lab"),
                        *("--json", "--progress", *options_of(plans)),
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
            plans = tuple(stored_plan(each) for each in json.loads(lines[0])["plans"])
        except (OSError, ValueError, LookupError):
            return None
        done, documents, said = 0, list[dict[str, Any]](), list[str]()
        for line in lines[1:]:
            try:
                entry = json.loads(line)
            except ValueError:
                said.append(line)
                continue
            if "outcome" in entry:
                documents.append(entry)
                done = sum(plan.in_all for plan in plans[: len(documents)])
            else:
                before = sum(plan.in_all for plan in plans[: len(documents)])
                done = before + entry.get("done", 0)
        trouble, output = "", ""
        if len(documents) < len(plans) and not at_work:
            errors = [each for each in said if each.startswith("error: ")]
            trouble = (errors or ["The run was stopped before its end."])[-1].removeprefix(
                "error: "
            )
            output = "\n".join(each for each in said if each not in errors)
        return Run(
            name=name,
            plans=plans,
            done=done,
            documents=tuple(documents),
            trouble=trouble,
            output=output,
        )

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
        for file in sorted(self._folder.glob("*.jsonl"), reverse=True)[MOST_KEPT:]:
            file.unlink(missing_ok=True)
