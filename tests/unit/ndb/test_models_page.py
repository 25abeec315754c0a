"""The examples and tables of docs/models.md: they run, and are complete."""

from __future__ import annotations

import dataclasses
import re
import sys
import types
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import ndb

import userlock
from tests.documents import Page

PAGE = Page("docs/models.md")
POLICIES = PAGE.take("python", "class VideoLog")
VALUES = PAGE.take("python", "class Subscription")
TEST = PAGE.take("python", "def test_each_model_has_a_write_policy")
#: Run by `tests/unit/docs/test_types.py`.
MYPY = PAGE.take("toml", "google.cloud")
WARNINGS = PAGE.take("python", "userlock.configure")


def test_each_policy_has_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    # ndb knows one class per kind in a process; the page's are its own.
    monkeypatch.setattr(ndb.Model, "_kind_map", {})
    names: dict[str, Any] = {"ndb": ndb, "userlock": userlock, "__name__": "app"}
    POLICIES.run(names)
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


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"email": "x" * 256}, "email is too long"),
        ({"plan": "gold"}, "not an allowed choice"),
        ({"email": None}, "uninitialized properties: email"),
        ({"seats": 2}, "a free plan has one seat"),
    ],
)
def test_values_are_checked_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], text: str
) -> None:
    monkeypatch.setattr(ndb.Model, "_kind_map", {})
    names = VALUES.run({"ndb": ndb, "userlock": userlock, "__name__": "app"})
    good = {"email": "Ann@example.com"}

    client = ndb.Client(project="nowhere", credentials=AnonymousCredentials())
    userlock.configure(service=userlock.LockService.from_url("memory:"))
    with client.context(), userlock.global_lock("ann"), pytest.raises(Exception, match=text):
        names["Subscription"](id="ann", **{**good, **values}).put()
    assert names["Subscription"](**good).email == "ann@example.com"


def test_each_violation_has_its_fix() -> None:
    violations = {each.__name__ for each in userlock.WriteViolation.__subclasses__()}
    section = PAGE.text.split("## Violations", 1)[1].split("\n## ", 1)[0]
    heads = re.findall(r"^- (`.*?`): ", section, re.MULTILINE)
    assert {name for head in heads for name in re.findall(r"`(\w+)`", head)} == violations


def test_each_setting_of_a_reaction_is_described_with_its_default() -> None:
    settings = {
        field.name: field.default.value
        for field in dataclasses.fields(userlock.Settings)
        if isinstance(field.default, userlock.Reaction)
    }
    assert set(settings) == set(re.findall(r"configure\((\w+)=", WARNINGS.text))
    section = PAGE.text.split("## Blind overwrites", 1)[1].split("\n## ", 1)[0]
    for default in settings.values():
        assert f'`"{default}"`' in section


def test_the_settings_can_be_set_as_described() -> None:
    WARNINGS.run({"userlock": userlock})


def test_the_page_s_test_requires_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    # ndb knows one class per kind in a process; the page's are its own.
    monkeypatch.setattr(ndb.Model, "_kind_map", {})
    app, models = types.ModuleType("app"), types.ModuleType("app.models")
    for module in (app, models):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    POLICIES.run(vars(models) | {"ndb": ndb, "userlock": userlock})
    test = TEST.run({"userlock": userlock})["test_each_model_has_a_write_policy"]
    test()
    forgotten = type("Forgotten", (ndb.Model,), {"__module__": "app.models"})
    with pytest.raises(AssertionError):
        test()
    forgotten.__module__ = "of_a_test"  # ndb keeps it
