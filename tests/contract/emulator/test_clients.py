"""The examples of the official client for Node.js. The other tests use that for Python."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import userlock_emulator
from tests.servers import lacking, real

NODE = Path(__file__).parent / "node"

EXPECTED: dict[str, Any] = {
    "save_and_get": {
        "text": "ü",
        "at": "2024-01-02T03:04:05.678Z",
        "number": 42,
        "real": 2.5,
        "blob": [0, 255],
        "nothing": None,
        "empty": [],
        "many": ["a", 1, True],
        "inner": {"x": [1, None], "deep": {"y": "z"}},
        "other": ["K", "n"],
        "where": [1, 2],
        "key": ["List", "default", "Task", "7"],
    },
    "missing": {"found": ["1", "2"], "none": None},
    "int64_and_double": {
        "large": "9223372036854775807",
        "small": "-9223372036854775808",
        "whole": 3,
        "list": ["9007199254740993", 1],
        "found": [1, 0],
    },
    # NOT_FOUND for an update, ALREADY_EXISTS for a second insert.
    "insert_update_upsert_delete": [5, 0, 6, 1, 4, None],
    "merge": {"a": 1, "b": 2, "c": 2},
    "ids_are_allocated": [1, 4],
    "filters": [
        ["5", "3"],
        ["1", "4"],
        ["1", "3"],
        ["2", "4", "5"],
        ["1", "2", "4", "5"],
        ["2"],
        ["4", "5"],
        ["2", "3"],
    ],
    "ancestors": [["1", "100"], ["1", "100"]],
    "cursors": [["1", "2"], ["3", "4"], ["5"]],
    "keys_only_and_projection": [[{}], ["all", "t1", "all", "t2"], [False, True]],
    # Several batches, each within the client's limit.
    "stream": [[str(i), 900_000] for i in range(1, 9)],
    "aggregations": [
        {"n": 5, "total": 15, "mean": 3},
        {"n": 2},
        {"n": 0, "total": 0},
    ],
    "average_of_nothing": {"mean": None},
    # ABORTED for the transaction that was too late.
    "transactions": [[30, 70], 10, 1],
    # INVALID_ARGUMENT for an indexed text of more than 1,500 bytes.
    "unindexed": [3, 2000, 2000, 2000, 0],
    "incomplete_requests": [3, 3],
}


def test_node(server: userlock_emulator.Emulator) -> None:
    node = real("node", "nodejs")
    if not (NODE / "node_modules").is_dir():
        lacking("@google-cloud/datastore is needed from npm: make servers")
    completed = subprocess.run(
        [node, "examples.mjs"],
        cwd=NODE,
        # It would search for Google's metadata server, and warn that there is none.
        env=os.environ | server.env | {"METADATA_SERVER_DETECTION": "none"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    assert json.loads(completed.stdout) == EXPECTED
