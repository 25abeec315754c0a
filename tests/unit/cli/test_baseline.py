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


# --- write --------------------------------------------------------------------------------------


def test_write_makes_and_replaces_the_file(terminal: Terminal) -> None:
    done = terminal.run("baseline", "write", log("a.jsonl", record(FINISH), record(CREATE)))
    added = f"+ {CREATE}\n+ {FINISH}\n"
    counts = "userlock-baseline.txt: 2 put sites; 2 added, 0 removed\n"
    assert (done.code, done.out) == (0, added + counts)
    assert known() == [CREATE, FINISH]
    done = terminal.run("--json", "baseline", "write", log("b", record(CREATE), record(AWARD)))
    assert done.document == {
        "file": "userlock-baseline.txt",
        "known": 2,
        "seen": 2,
        "added": [AWARD],
        "removed": [FINISH],
    }
    assert known() == [AWARD, CREATE]
    done = terminal.run("baseline", "write", "--add", log("c", record(FINISH)))
    assert "3 put sites; 1 added, 0 removed" in done.out
    assert known() == [AWARD, CREATE, FINISH]


def test_several_logs_and_a_file_of_another_name(terminal: Terminal) -> None:
    logs = log("a.jsonl", record(FINISH)), log("b.jsonl", record(AWARD), record(FINISH))
    assert terminal.run("baseline", "write", *logs, "--file", "app/known.txt").code == 0
    assert Path("app/known.txt").read_text().count("Learner") == 2


# --- check --------------------------------------------------------------------------------------


@pytest.fixture
def baseline(project: Path) -> str:
    text = f"{FINISH}  # ticket 4711\n{CREATE}\n"
    Path("userlock-baseline.txt").write_text(text)
    return text


@pytest.mark.parametrize(
    ("seen", "code", "strict", "out"),
    [
        ([FINISH, CREATE], 0, 0, "2 put sites known, 2 seen; 0 new, 0 stale\n"),
        ([FINISH], 0, 1, "2 put sites known, 1 seen; 0 new, 1 stale\n"),
        ([FINISH, AWARD], 1, 1, "2 put sites known, 2 seen; 1 new, 1 stale\n"),
    ],
)
def test_check(
    terminal: Terminal, baseline: str, seen: list[str], code: int, strict: int, out: str
) -> None:
    name = log("a", *map(record, seen))
    done = terminal.run("baseline", "check", name)
    new = ""
    if AWARD in seen:
        places = "read at /srv/app/learners.py:23, put at /srv/app/badges.py:22"
        new = f"new    {AWARD}\n       {places}\n"
    stale = "" if CREATE in seen else f"stale  {CREATE}\n"
    assert (done.code, done.out) == (code, f"{new}{stale}userlock-baseline.txt: {out}")
    assert terminal.run("baseline", "check", name, "--strict").code == strict
    assert Path("userlock-baseline.txt").read_text() == baseline, "it changes nothing"


def test_check_as_a_document(terminal: Terminal, baseline: str) -> None:
    name = log("a", record(AWARD, count=7), record(AWARD))
    done = terminal.run("baseline", "check", "--json", name)
    facts = record(AWARD)["userlock_site"]
    assert (done.code, done.document) == (
        1,
        {
            "file": "userlock-baseline.txt",
            "known": 2,
            "seen": 1,
            "new": [{"site": AWARD, "put": facts["put"], "read": facts["read"], "times": 8}],
            "stale": [CREATE, FINISH],
        },
    )


# --- logs ---------------------------------------------------------------------------------------

FACTS = {"userlock_site": record(FINISH)["userlock_site"]}


@pytest.mark.parametrize(
    "lines",
    [
        [{"insertId": "x", "jsonPayload": record(FINISH), "resource": {"labels": {}}}],
        [json.dumps([{"jsonPayload": record(FINISH)}, {"textPayload": "x"}], indent=2)],
        [{"extra": {**FACTS, "json_fields": FACTS}}],
        ["[2024-05-01 12:00] plain text", record(FINISH), "", '{"level": "INFO"}', "{"],
        [record(FINISH, folder="")],
        [record(FINISH), record(FINISH.replace("PutWithoutLock", "LeaseWasLost"))],
        [record(FINISH), record(FINISH.replace("PutWithoutLock", "LeaseRanOut"))],
    ],
    ids=[
        *("of Google's logging", "as gcloud prints it", "with a formatter's fields"),
        *("between others", "named from the root", "a lost lease", "a lease that ran out"),
    ],
)
@pytest.mark.parametrize("by", ["file", "standard input"])
def test_the_sites_in_a_log(terminal: Terminal, lines: list[Any], by: str) -> None:
    name = log("a.jsonl", *lines)
    if by == "file":
        done = terminal.run("baseline", "write", name)
    else:
        done = terminal.run("baseline", "write", "-", typed=Path(name).read_text())
    assert (done.code, known()) == (0, [FINISH])


def test_from_another_folder(terminal: Terminal) -> None:
    name = log("a.jsonl", record(FINISH))
    assert terminal.run("baseline", "write", name, "--root", "app").code == 0
    assert known() == ["points.py::finish PutWithoutLock Learner"]


@pytest.mark.parametrize(
    ("lines", "says", "sites"),
    [
        (
            [record(FINISH), '{"userlock_site": {"kind": 7}}', '{"userlock_site": {"viol'],
            "2 unreadable records of put sites left out",
            [FINISH],
        ),
        (['[{"insertId":'], "1 unreadable record of put sites left out", []),
        (["plain text"], "no put site in the logs", []),
    ],
)
def test_what_is_left_out_is_said(
    terminal: Terminal, lines: list[Any], says: str, sites: list[str]
) -> None:
    done = terminal.run("baseline", "write", log("a.jsonl", *lines))
    assert (done.code, says in done.err, known()) == (0, True, sites)


def test_a_log_that_was_cut_off_removes_and_passes_nothing(terminal: Terminal) -> None:
    Path("userlock-baseline.txt").write_text(f"{FINISH}\n")
    cut_off = json.dumps([record(FINISH)], indent=2)[:-20]
    assert terminal.run("baseline", "check", log("a.json", cut_off)).code == 1
    assert terminal.run("baseline", "write", log("a.json", cut_off)).code == 0
    assert known() == [FINISH]


def test_nothing_harms_the_terminal(terminal: Terminal) -> None:
    nasty = record(FINISH)
    nasty["userlock_site"]["put"]["file"] = "/srv/\x1b[2Japp.py"
    Path("userlock-baseline.txt").write_text("")
    done = terminal.run("baseline", "check", log("a.jsonl", nasty))
    assert (done.code, "\x1b" in done.out) == (1, False)


# --- usage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "known", "says"),
    [
        (["write", "nowhere.jsonl"], "", "nowhere.jsonl: No such file or directory"),
        (["write", "a", "--file", "no/b.txt"], "", "no/b.txt: No such file or directory"),
        (["check", "a"], None, "there is no baseline userlock-baseline.txt. To fix it:"),
        (["check", "a"], ">>>>>>> x\n", "line 1: '>>>>>>> x' names no put site"),
        (["check", "a", "--add"], "", "--add is an option of write"),
        (["write", "a", "--strict"], "", "--strict is an option of check"),
        (["wrote", "a"], "", "invalid choice: 'wrote'"),
        (["write"], "", "the following arguments are required: LOG"),
    ],
)
def test_wrong_command_lines_and_files(
    terminal: Terminal,
    arguments: list[str],
    known: str | None,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log("a", record(FINISH))
    if known is not None:
        Path("userlock-baseline.txt").write_text(known)
    done = terminal.run("baseline", *arguments)
    assert (done.code, says in done.err + capsys.readouterr().err) == (2, True)
