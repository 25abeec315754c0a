"""ndb without userlock, in a process that has imported it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import pristine


def _python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_every_hook_is_found_taken_out_and_put_back() -> None:
    printed = _python(
        "from benchmarks import pristine\n"
        "from google.cloud.ndb import model\n"
        "original = model._entity_from_protobuf\n"
        "assert not pristine.replaced()\n"
        "from userlock import UserModel\n"
        "hooked = model._entity_from_protobuf\n"
        "assert hooked is not original\n"
        "names = {attribute.name for attribute in pristine.replaced()}\n"
        "with pristine.restored():\n"
        "    assert model._entity_from_protobuf is original\n"
        "    assert not pristine.replaced()\n"
        "assert model._entity_from_protobuf is hooked\n"
        "assert {attribute.name for attribute in pristine.replaced()} == names\n"
        "print(*sorted(names))\n"
    )
    assert {"_entity_from_protobuf", "get_async", "delete_async", "_process_commit"} <= set(
        printed.split()
    )


def test_it_must_be_imported_before_userlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pristine, "_too_late", True)
    with pytest.raises(RuntimeError, match="python -m benchmarks"):
        pristine.replaced()
