"""Print a script that lets a shell complete commands and options: `userlock completion bash`.

The script asks the installed command for the candidates, which come from its parser. So neither
can be out of date.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from userlock.cli.command import FINE, Invocation

NAME = "completion"
SUMMARY = "print a script for a shell that completes commands and options"
NO_MEANS = ""
DETAILS = """\
Add one of these lines to the start-up file of the shell:

  bash  eval "$(userlock completion bash)"        in ~/.bashrc
  zsh   eval "$(userlock completion zsh)"         in ~/.zshrc, after compinit
  fish  userlock completion fish | source         in ~/.config/fish/config.fish

The JSON document has script.
"""

_SCRIPTS = {
    # bash breaks words at = and : as well.
    "bash": """\
_userlock() {
    local IFS=$'\\n'
    COMPREPLY=($("$1" completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _userlock userlock
""",
    "zsh": """\
#compdef userlock
_userlock() {
    local -a found
    found=("${(@f)$("${words[1]}" completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then
        _describe userlock found
    else
        _files
    fi
}
if [[ "${funcstack[1]}" = _userlock ]]; then _userlock "$@"; else compdef _userlock userlock; fi
""",
    "fish": """\
function __userlock
    set -l typed (commandline -opc)
    set -l found ($typed[1] completion fish -- $typed[2..-1] (commandline -ct) 2>/dev/null)
    if test -n "$found[1]"
        string join \\n -- $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c userlock -f -a '(__userlock)'
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="bash|zsh|fish", choices=tuple(_SCRIPTS))
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)


def run(options: argparse.Namespace, invocation: Invocation) -> int:
    if options.words:
        lines = [_line(options.shell, each) for each in candidates(options.parser, options.words)]
        if lines:
            invocation.console.say("\n".join(lines))
    elif invocation.json:
        invocation.console.document({"script": _SCRIPTS[options.shell]})
    else:
        invocation.console.say(_SCRIPTS[options.shell].rstrip("\n"))
    return FINE


class Candidate(NamedTuple):
    """A word, and a description."""

    word: str
    help: str


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[Candidate]:
    """Return the words that may stand in the place of the last one, which has been begun.

    Args:
        parser: the parser of the program.
        words: those after the program's name; the last one may be empty.
    """
    *typed, begun = _joined(words)
    value_of: argparse.Action | None = None
    position, options_end = 0, False
    for word in typed:
        if value_of is not None:
            value_of = None
        elif word == "--" and not options_end:
            options_end = True
        elif word.startswith("-") and not options_end:
            action = parser._option_string_actions.get(word)  # None also for --name=value
            value_of = action if action is not None and action.nargs != 0 else None
        else:
            commands = _commands(parser)
            if commands is None:
                position += 1
            elif word in commands.choices:
                parser, position = commands.choices[word], 0
            else:
                return []
    if value_of is not None:
        found = _choices(value_of)
    elif begun.startswith("-") and not options_end:
        found = _options(parser)
    else:
        places = [each for each in parser._actions if not each.option_strings]
        found = _choices(places[position]) if position < len(places) else iter(())
    return [each for each in found if each.word.startswith(begun)]


def _joined(words: Sequence[str]) -> list[str]:
    """Return the words; those that bash has broken at `=` and `:` are whole again."""
    found: list[str] = []
    for word in words:
        if found and word and (set(word) <= set("=:") or re.search("[=:]$", found[-1])):
            found[-1] += word
        else:
            found.append(word)
    return found


def _commands(
    parser: argparse.ArgumentParser,
) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
    actions = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return next(actions, None)


def _options(parser: argparse.ArgumentParser) -> Iterator[Candidate]:
    for action in parser._actions:
        for name in action.option_strings:
            if name.startswith("--") and action.help != argparse.SUPPRESS:
                yield Candidate(name, (action.help or "") % {**vars(action), "prog": parser.prog})


def _choices(action: argparse.Action) -> Iterator[Candidate]:
    if isinstance(action, argparse._SubParsersAction):
        for each in action._choices_actions:
            yield Candidate(each.dest, each.help or "")
    else:
        for word in action.choices or ():
            yield Candidate(str(word), "")


def _line(shell: str, candidate: Candidate) -> str:
    """Return a candidate as a shell's script reads it."""
    if shell == "bash":
        return candidate.word
    separator = ":" if shell == "zsh" else "\t"  # no word has one of them
    return f"{candidate.word}{separator}{candidate.help}"
