"""Real shells complete the command, with the scripts that it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.unit.cli.test_docs import COMPLETION

#: Press the tab key: call the registered function as bash does, on words that it has broken.
TAB = """
press_tab() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    "$(complete -p userlock | sed 's/.*-F \\([^ ]*\\) .*/\\1/')" userlock "${@: -1}" "${@: -2:1}"
    echo "${COMPREPLY[*]}"
}
"""


def run(program: str, *arguments: str) -> list[str]:
    there = Path(sys.executable).parent
    done = subprocess.run(
        [program, *arguments],
        env={**os.environ, "PATH": f"{there}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_bash() -> None:
    program = (
        f"{COMPLETION.text}{TAB}"
        + """
    press_tab userlock hol
    press_tab userlock outbox list --d
    press_tab userlock --store = redis : //h/0 unique ''
    press_tab userlock holder ''
    """
    )
    assert run("bash", "--norc", "-c", program) == ["holder", "--dead", "check repair", ""]


def test_bash_keeps_completing_files() -> None:
    (line,) = run("bash", "--norc", "-c", f"{COMPLETION.text}complete -p userlock")
    assert "-o default" in line


def test_fish() -> None:
    program = "userlock completion fish | source; complete -C 'userlock outbox list --d'"
    assert run("fish", "--no-config", "-c", program) == ["--dead\tonly dead jobs"]


def test_zsh() -> None:
    program = """
    autoload -Uz compinit; compinit -u -D
    eval "$(userlock completion zsh)"
    print $_comps[userlock]
    """
    assert run("zsh", "-f", "-c", program) == ["_userlock"]
