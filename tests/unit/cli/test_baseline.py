"""Test `userlock baseline`: put sites from reports and logs, and the file of known sites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.terminal import Terminal

FINISH = "app/points.py::finish PutWithoutLock Learner"
AWARD = "app/badges.py::award PutWithoutLock Learner"
CREATE = "app/learners.py::create CreatedWithoutLock Learner"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a project with three files."""
    for name in ("points", "badges", "learners"):
        path = tmp_path / "app" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(line: str, folder: str = "/srv/", **more: Any) -> dict[str, Any]:
    """Return the log record of a site. In production the project is in another folder."""
    put, violation, kind = line.split()
    file, function = put.split("::")
    read = {"file": f"{folder}app/learners.py", "line": 23, "function": "load"}
    facts = {
        "violation": violation,
        "kind": kind,
        "put": {"file": folder + file, "line": 22, "function": function},
        "read": None if violation == "CreatedWithoutLock" else read,
    }
    return {"message": "a put", "userlock_site": facts, **more}


def log(name: str, *lines: dict[str, Any] | str) -> str:
    Path(name).write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    )
    return name


def known() -> list[str]:
    lines = Path("userlock-baseline.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


class TestWrite:
    def test_makes_the_file(self, terminal: Terminal) -> None:
        done = terminal.run("baseline", "write", log("a.jsonl", record(FINISH), record(CREATE)))
        assert done.code == 0
        assert done.out == (
            f"+ {CREATE}\n+ {FINISH}\nuserlock-baseline.txt: 2 put sites; 2 added, 0 removed\n"
        )
        assert known() == [CREATE, FINISH]

    def test_the_file_is_replaced(self, terminal: Terminal) -> None:
        terminal.run("baseline", "write", log("a.jsonl", record(FINISH), record(CREATE)))
        done = terminal.run(
            "--json", "baseline", "write", log("b.jsonl", record(CREATE), record(AWARD))
        )
        assert done.document == {
            "file": "userlock-baseline.txt",
            "known": 2,
            "seen": 2,
            "added": [AWARD],
            "removed": [FINISH],
        }
        assert known() == [AWARD, CREATE]

    def test_add_keeps_the_other_lines(self, terminal: Terminal) -> None:
        terminal.run("baseline", "write", log("a.jsonl", record(FINISH)))
        done = terminal.run("baseline", "write", "--add", log("b.jsonl", record(AWARD)))
        assert "2 put sites; 1 added, 0 removed" in done.out
        assert known() == [AWARD, FINISH]

    def test_several_logs_and_a_file_of_another_name(self, terminal: Terminal) -> None:
        logs = log("a.jsonl", record(FINISH)), log("b.jsonl", record(AWARD), record(FINISH))
        assert terminal.run("baseline", "write", *logs, "--file", "app/known.txt").code == 0
        assert Path("app/known.txt").read_text().count("Learner") == 2

    def test_a_file_that_cannot_be_written(self, terminal: Terminal) -> None:
        done = terminal.run("baseline", "write", log("a", record(FINISH)), "--file", "no/b.txt")
        assert (done.code, done.err) == (
            2,
            "userlock baseline: no/b.txt: No such file or directory\n",
        )


class TestCheck:
    @pytest.fixture(autouse=True)
    def _baseline(self, project: Path) -> None:
        Path("userlock-baseline.txt").write_text(f"{FINISH}  # ticket 4711\n{CREATE}\n")

    def test_nothing_new(self, terminal: Terminal) -> None:
        done = terminal.run("baseline", "check", log("a", record(FINISH), record(CREATE)))
        assert (done.code, done.out) == (
            0,
            "userlock-baseline.txt: 2 put sites known, 2 seen; 0 new, 0 stale\n",
        )

    def test_new_ones(self, terminal: Terminal) -> None:
        done = terminal.run("baseline", "check", log("a", record(FINISH), record(AWARD)))
        assert done.code == 1
        assert done.out == (
            f"new    {AWARD}\n"
            f"       read at /srv/app/learners.py:23, put at /srv/app/badges.py:22\n"
            f"stale  {CREATE}\n"
            f"userlock-baseline.txt: 2 put sites known, 2 seen; 1 new, 1 stale\n"
        )

    def test_stale_ones_are_reported_and_with_strict_an_error(self, terminal: Terminal) -> None:
        name = log("a", record(FINISH))
        done = terminal.run("baseline", "check", name)
        assert done.code == 0
        assert f"stale  {CREATE}" in done.out
        assert terminal.run("baseline", "check", name, "--strict").code == 1
        both = log("b", record(FINISH), record(CREATE))
        assert terminal.run("baseline", "check", both, "--strict").code == 0

    def test_as_a_document(self, terminal: Terminal) -> None:
        done = terminal.run(
            "baseline", "check", "--json", log("a", record(AWARD, count=7), record(AWARD))
        )
        assert done.code == 1
        facts = record(AWARD)["userlock_site"]
        assert done.document == {
            "file": "userlock-baseline.txt",
            "known": 2,
            "seen": 1,
            "new": [{"site": AWARD, "put": facts["put"], "read": facts["read"], "times": 8}],
            "stale": [CREATE, FINISH],
        }

    def test_it_changes_nothing(self, terminal: Terminal) -> None:
        before = Path("userlock-baseline.txt").read_text()
        terminal.run("baseline", "check", log("a", record(AWARD)))
        assert Path("userlock-baseline.txt").read_text() == before


class TestLogs:
    def seen(self, terminal: Terminal, *lines: dict[str, Any] | str) -> list[str]:
        assert terminal.run("baseline", "write", log("a.jsonl", *lines)).code == 0
        return known()

    def test_as_googles_logging_has_it(self, terminal: Terminal) -> None:
        entry = {"insertId": "x", "jsonPayload": record(FINISH), "resource": {"labels": {}}}
        assert self.seen(terminal, entry) == [FINISH]

    def test_as_gcloud_prints_it(self, terminal: Terminal) -> None:
        entries = [{"jsonPayload": record(FINISH)}, {"textPayload": "x"}, {"jsonPayload": None}]
        assert self.seen(terminal, json.dumps(entries, indent=2)) == [FINISH]

    def test_with_the_fields_of_a_formatter(self, terminal: Terminal) -> None:
        facts = {"userlock_site": record(FINISH)["userlock_site"]}
        assert self.seen(terminal, {"extra": {**facts, "json_fields": facts}}) == [FINISH]

    def test_between_lines_of_other_kinds(self, terminal: Terminal) -> None:
        lines: list[Any] = [
            "[2024-05-01 12:00] plain text",
            record(FINISH),
            "",
            '{"level": "INFO"}',
            "{",
        ]
        assert self.seen(terminal, *lines) == [FINISH]

    def test_from_standard_input(self, terminal: Terminal) -> None:
        line = json.dumps(record(FINISH)) + "\n"
        assert terminal.run("baseline", "write", "-", typed=line).code == 0
        assert known() == [FINISH]

    def test_of_a_report_that_names_files_from_the_root(self, terminal: Terminal) -> None:
        assert self.seen(terminal, record(FINISH, folder="")) == [FINISH]

    def test_from_another_folder(self, terminal: Terminal, project: Path) -> None:
        name = log("a.jsonl", record(FINISH))
        assert terminal.run("baseline", "write", name, "--root", "app").code == 0
        assert known() == ["points.py::finish PutWithoutLock Learner"]

    def test_unreadable_records_are_counted(self, terminal: Terminal) -> None:
        lines: list[Any] = [
            record(FINISH),
            '{"userlock_site": {"kind": 7}}',
            '{"userlock_site": {"viol',
        ]
        done = terminal.run("baseline", "write", log("a.jsonl", *lines))
        assert done.code == 0
        assert "2 unreadable records of put sites left out" in done.err
        assert known() == [FINISH]

    def test_a_lost_lease_is_no_mistake_of_the_code(self, terminal: Terminal) -> None:
        lost = FINISH.replace("PutWithoutLock", "LeaseWasLost")
        over = FINISH.replace("PutWithoutLock", "LeaseRanOut")
        assert self.seen(terminal, record(lost), record(FINISH), record(over)) == [FINISH]

    def test_nothing_in_it(self, terminal: Terminal) -> None:
        done = terminal.run("baseline", "write", log("a.jsonl", "plain text"))
        assert done.code == 0
        assert "no put site in the logs" in done.err
        assert known() == []

    def test_nothing_harms_the_terminal(self, terminal: Terminal) -> None:
        nasty = record(FINISH)
        nasty["userlock_site"]["put"]["file"] = "/srv/\x1b[2Japp.py"
        Path("userlock-baseline.txt").write_text("")
        done = terminal.run("baseline", "check", log("a.jsonl", nasty))
        assert done.code == 1
        assert "\x1b" not in done.out


class TestUsage:
    def test_a_missing_log(self, terminal: Terminal) -> None:
        done = terminal.run("baseline", "write", "nowhere.jsonl")
        assert (done.code, done.err) == (
            2,
            "userlock baseline: nowhere.jsonl: No such file or directory\n",
        )

    def test_a_missing_baseline(self, terminal: Terminal) -> None:
        done = terminal.run("baseline", "check", log("a.jsonl", record(FINISH)))
        assert done.code == 2
        assert "there is no baseline userlock-baseline.txt. To fix it:" in done.err

    def test_an_invalid_baseline(self, terminal: Terminal) -> None:
        Path("userlock-baseline.txt").write_text(">>>>>>> other\n")
        done = terminal.run("baseline", "check", log("a.jsonl", record(FINISH)), "--json")
        assert done.code == 2
        assert "line 1: '>>>>>>> other' names no put site" in done.document["error"]

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["check", "a", "--add"], "--add is an option of write"),
            (["write", "a", "--strict"], "--strict is an option of check"),
            (["wrote", "a"], "there is no 'wrote'; did you mean write?"),
            (["write"], "the following arguments are required: LOG"),
        ],
    )
    def test_wrong_options(
        self,
        terminal: Terminal,
        arguments: list[str],
        says: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        done = terminal.run("baseline", *arguments)
        assert done.code == 2
        assert says in done.err + capsys.readouterr().err
