"""A folder for data files: claimed by one server of each kind, and readable by its owner only."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from userlock_emulator.exports import ENV_FILE
from userlock_emulator.port.status import StorageError
from userlock_emulator.private_files import close_to_others, create_file, make_folder, opener

#: The data file of each server, and the file by which the server claims it.
DATASTORE, TASKS = "datastore.sqlite3", "tasks.sqlite3"
_LOCKS = {DATASTORE: "lock", TASKS: "tasks.lock"}
# SQLite creates the others with the permissions of the first.
_OUR_FILES = (
    *(f"{name}{end}" for name in _LOCKS for end in ("", "-wal", "-shm", "-journal")),
    *_LOCKS.values(),
    ENV_FILE,
)


def claim(folder: Path, file_name: str) -> IO[bytes]:
    """Prepare a data folder, and lock one data file in it until the returned file is closed.

    Two emulators on one file would allocate the same ids.

    Raises:
        OSError: the folder cannot be used.
        StorageError: the folder is a file, or another emulator is using the file in it.
    """
    try:
        make_folder(folder)
    except FileExistsError as error:
        raise StorageError(f"{error.filename} is a file, not a folder") from None
    claimed = open(folder / _LOCKS[file_name], "ab", opener=opener)  # noqa: SIM115
    try:
        fcntl.flock(claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        claimed.close()
        raise StorageError("another emulator is using it") from None
    _keep_private(folder, file_name)
    return claimed


def _keep_private(folder: Path, file_name: str) -> None:
    """Close the files to others, and the folder too if it is ours: if it holds nothing else."""
    had_data = (folder / file_name).exists()
    create_file(folder / file_name)
    for name in _OUR_FILES:
        close_to_others(folder / name)
    if had_data and all(each.name in _OUR_FILES for each in folder.iterdir()):
        close_to_others(folder)
