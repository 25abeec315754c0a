"""Devices and pipes, which may have no end, are not imported. An attempt would not return."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from userlock_emulator import dump
from userlock_emulator.datastore import export_files
from userlock_emulator.datastore.errors import DatastoreError


def zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


READERS: dict[str, Callable[[Path], object]] = {
    "a.jsonl": lambda path: list(dump.read(path.parent)),
    "export.json": lambda path: list(dump.read(path.parent)),
    "output-0": lambda path: list(export_files.read(path)),
    "a.overall_export_metadata": lambda path: export_files.outputs(path.parent),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("make", [os.mkfifo, zero, folder])
def test_only_regular_files_are_read(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / name)
    with pytest.raises((dump.DumpError, DatastoreError), match=r"regular file|no export|exports"):
        READERS[name](tmp_path / name)


def test_a_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("{}\n")
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "elsewhere")
    assert list(dump.read(tmp_path)) == [b"{}\n"]
