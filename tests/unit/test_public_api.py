"""The public API is what docs/reference documents."""

from __future__ import annotations

import re
import types

import pytest

import userlock
from tests.documents import ROOT

DOCUMENTED = {
    name
    for page in (ROOT / "docs" / "reference").glob("*.md")
    for name in re.findall(r"^::: userlock\.(\w+)$", page.read_text(), re.MULTILINE)
}


def test_the_public_names_are_those_of_the_reference() -> None:
    """The reference also has the docstring of `userlock.errors`: the tree of errors."""
    assert {*userlock.__all__, "errors"} == DOCUMENTED


def test_nothing_else_looks_public() -> None:
    others = {
        name
        for name in dir(userlock)
        if not name.startswith("_") and name not in DOCUMENTED
        if not isinstance(getattr(userlock, name), types.ModuleType)
    }
    assert others <= {"annotations", "TYPE_CHECKING"}


def test_a_name_that_is_none() -> None:
    """Type checkers see that, too: without the error, the `ignore` would be unused."""
    with pytest.raises(AttributeError, match="'userlock' has no attribute 'globl_lock'"):
        userlock.globl_lock  # type: ignore[attr-defined]  # noqa: B018


def test_each_has_a_docstring() -> None:
    values = {name: getattr(userlock, name) for name in DOCUMENTED - {"__version__"}}
    assert [name for name, value in values.items() if not (value.__doc__ or "").strip()] == []


def test_every_error_is_under_one_base() -> None:
    values = [getattr(userlock, name) for name in DOCUMENTED]
    errors = [each for each in values if isinstance(each, type) and issubclass(each, Exception)]
    assert len(errors) > 15
    # Errors of stores for the service never leave it; see their docstring.
    others = [error for error in errors if not issubclass(error, userlock.UserLockError)]
    assert others == [userlock.StoreUnavailable]
