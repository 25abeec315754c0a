"""docs/models.md: its examples run, and its tables have everything there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from google.cloud import ndb

import userlock

PAGE = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def first_column(after: str) -> set[str]:
    """The code in the first column of the table below a heading."""
    table = PAGE.split(after, 1)[1].split("\n\n|", 1)[1].split("\n\n", 1)[0]
    cells = [
        line.split("|")[0 if index == 0 else 1] for index, line in enumerate(table.split("\n"))
    ]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_each_policy_has_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    # ndb knows one class per kind in a process; the page's are its own.
    monkeypatch.setattr(ndb.Model, "_kind_map", {})
    names: dict[str, Any] = {"ndb": ndb, "userlock": userlock, "__name__": "app"}
    exec(EXAMPLES[0], names)  # noqa: S102 (our own page)
    shown = {
        value._write_policy.name
        for value in names.values()
        if isinstance(value, type) and issubclass(value, userlock.Model)
    }
    all_policies = {
        value.name
        for value in vars(userlock.WritePolicy).values()
        if isinstance(value, userlock.WritePolicy)
    }
    assert shown == all_policies | {"unsafe"}


def test_each_policy_is_in_its_table() -> None:
    all_policies = {
        name
        for name, value in vars(userlock.WritePolicy).items()
        if isinstance(value, userlock.WritePolicy)
    }
    listed = first_column("## The policies")
    assert all_policies | {'unsafe("why")'} == {name for name in listed if "…" not in name}


def test_each_violation_is_in_its_table() -> None:
    violations = {each.__name__ for each in userlock.WriteViolation.__subclasses__()}
    assert first_column("## The violations") == violations


def test_each_setting_of_a_reaction_is_in_its_table() -> None:
    settings = {
        field.name: field.default.value
        for field in dataclasses.fields(userlock.Settings)
        if isinstance(field.default, userlock.Reaction)
    }
    assert first_column("## Warnings") == set(settings)
    for name, default in settings.items():
        assert f"| `{name}` | `{default}` |" in PAGE


def test_the_settings_are_set_as_it_says() -> None:
    exec(EXAMPLES[-1], {"userlock": userlock})  # noqa: S102 (our own page)
