"""Files and folders that only their owner can read, whatever the umask allows."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = 0o700
_FILE = 0o600


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents. Existing ones stay as they are."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(_FOLDER, exist_ok=True)


def make_new_folder(path: Path) -> bool:
    """Create a folder, whose parent exists. Return False if something has that name already."""
    try:
        path.mkdir(_FOLDER)
    except FileExistsError:
        return False
    return True


def opener(path: str, flags: int) -> int:
    """Open a file, created for its owner alone: for `open(opener=…)`."""
    return os.open(path, flags, _FILE)


def create_file(path: Path) -> None:
    """Create a file if it is missing."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, _FILE))


def close_to_others(path: Path) -> None:
    """Take the permissions of others from a file or folder of an earlier version, if it exists."""
    try:
        mode = path.stat().st_mode & 0o7777
        if mode & 0o077:
            path.chmod(mode & ~0o077)
    except FileNotFoundError:
        pass
    except PermissionError:
        pass  # somebody else's, who decides
