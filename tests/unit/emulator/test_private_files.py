"""Files and folders for their owner alone, whatever the umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from userlock_emulator import dump
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.private_files import close_to_others, make_folder, make_new_folder


@pytest.fixture(autouse=True, params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def modes(folder: Path) -> set[int]:
    return {mode(each) for each in (folder, *folder.rglob("*"))}


def test_new_data(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "a" / "b")
    with storage.write():
        pass
    assert modes(tmp_path / "a") == {0o700, 0o600}
    storage.close()


def test_data_of_an_earlier_version(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    Storage(folder).close()
    for each in folder.iterdir():
        each.chmod(0o666)
    folder.chmod(0o777)
    storage = Storage(folder)
    assert modes(folder) == {0o700, 0o600}
    storage.close()


def test_a_folder_of_others_stays_open(tmp_path: Path) -> None:
    """It holds other files as well, or nothing yet: somebody else made it."""
    folder = tmp_path / "data"
    folder.mkdir(0o755)
    folder.chmod(0o755)
    Storage(folder).close()
    assert mode(folder) == 0o755
    (folder / "notes.txt").write_text("mine")
    Storage(folder).close()
    assert mode(folder) == 0o755
    assert mode(folder / "datastore.sqlite3") == 0o600


def test_an_export(tmp_path: Path) -> None:
    line = b'{"key": {"partitionId": {"projectId": "p"}, "path": [{"kind": "K", "name": "a"}]}}\n'
    dump.write([line], tmp_path / "new" / "export")
    assert modes(tmp_path / "new") == {0o700, 0o600}


def test_a_new_one(tmp_path: Path) -> None:
    close_to_others(tmp_path / "missing")
    make_folder(tmp_path)
    assert make_new_folder(tmp_path / "new")
    assert mode(tmp_path / "new") == 0o700
    assert not make_new_folder(tmp_path / "new")
    (tmp_path / "file").touch()
    assert not make_new_folder(tmp_path / "file")
