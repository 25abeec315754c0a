"""The differences as text: grouped, each group with its first example."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google.protobuf.text_format import MessageToString

from tools.compare.known import Known, known
from tools.compare.running import ERROR, Difference

_SHOWN = 700


def lines(name: str, differences: Iterable[Difference], *, known_too: bool) -> Iterator[str]:
    """Yield the report on one emulator: known differences in a line each, others in full.

    Args:
        name: the name of the emulator in the table of known differences.
        differences: what was found.
        known_too: show examples of known differences, too.
    """
    explained: dict[Known, list[Difference]] = {}
    groups: dict[str, list[Difference]] = {}
    for each in differences:
        entry = known(name, each)
        if entry is None:
            groups.setdefault(title(each), []).append(each)
        else:
            explained.setdefault(entry, []).append(each)
    for entry, found in sorted(explained.items(), key=lambda item: -len(item[1])):
        yield f"  known, {len(found)} times: {entry.title} ({entry.why})"
        if known_too:
            yield from _example(found[0])
    for group, found in sorted(groups.items(), key=lambda item: -len(item[1])):
        yield f"  UNEXPLAINED, {len(found)} times: {group}"
        yield from _example(found[0])


def title(difference: Difference) -> str:
    """Return what the members of a group have in common."""
    step = difference.step
    special = ("mistake", "rule", "place")
    mistakes = "".join(f", {word}" for word in sorted(step.features) if word.startswith(special))
    if difference.part == ERROR:
        return f"{step.rpc}{mistakes}: {difference.ours} here, {difference.theirs} there"
    if isinstance(difference.ours, str):
        what = f"{difference.part}: {difference.ours} here, {difference.theirs} there"
    else:
        what = difference.part
    return f"{step.rpc}{mistakes}: {what}"


def _example(difference: Difference) -> Iterator[str]:
    step = difference.step
    request = MessageToString(step.request, as_one_line=True)
    yield f"    seed {difference.seed}, step {difference.number}, with {_words(step.features)}"
    yield f"    request: {_short(request)}"
    for side, outcome, said in zip(
        ("here", "there"), (difference.ours, difference.theirs), difference.said, strict=True
    ):
        yield f"    {side}: {_short(str(outcome))}{f': {said[:200]}' if said else ''}"


def _words(features: Iterable[str]) -> str:
    return ", ".join(sorted(features)) or "nothing special"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
