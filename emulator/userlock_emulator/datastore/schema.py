"""The SQLite schema: versioned entities and index rows.

Current and superseded rows are in different tables. A read of the present never scans history, and
old history is removed without touching the present. A superseded row carries the version that
replaced it (`until`). A reader at time T sees it if `version <= T < until`.

    entities         partition, key -> version, created, data
    entity_history   partition, key, version -> until, created, data
    deletions        partition, key -> version of the last deletion
    index_rows       scope, value, key -> since
    index_history    scope, value, key, since -> until

A scope is one index: a partition, a kind and a property name. The scope named `__key__` has an
entry with an empty value per entity of the kind. `multi` is set once an entity has had several
values in that index.
"""

import sqlite3

from userlock_emulator.datastore.errors import StorageError

# Raised with each change of the tables or of the encodings in them.
SCHEMA_VERSION = 1

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY,
    project TEXT NOT NULL, "database" TEXT NOT NULL, namespace TEXT NOT NULL,
    UNIQUE (project, "database", namespace)
);
CREATE TABLE scopes (
    id INTEGER PRIMARY KEY,
    "partition" INTEGER NOT NULL, kind TEXT NOT NULL, property TEXT NOT NULL,
    multi INTEGER NOT NULL DEFAULT 0,
    UNIQUE ("partition", kind, property)
);
CREATE TABLE entities (
    "partition" INTEGER NOT NULL, key BLOB NOT NULL,
    version INTEGER NOT NULL, created INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY ("partition", key)
) WITHOUT ROWID;
CREATE TABLE entity_history (
    "partition" INTEGER NOT NULL, key BLOB NOT NULL,
    version INTEGER NOT NULL, created INTEGER NOT NULL, data BLOB NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY ("partition", key, version)
) WITHOUT ROWID;
CREATE INDEX entity_history_until ON entity_history (until);
CREATE TABLE deletions (
    "partition" INTEGER NOT NULL, key BLOB NOT NULL, version INTEGER NOT NULL,
    PRIMARY KEY ("partition", key)
) WITHOUT ROWID;
CREATE INDEX deletions_version ON deletions (version);
CREATE TABLE index_rows (
    scope INTEGER NOT NULL, value BLOB NOT NULL, key BLOB NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (scope, value, key)
) WITHOUT ROWID;
CREATE TABLE index_history (
    scope INTEGER NOT NULL, value BLOB NOT NULL, key BLOB NOT NULL,
    since INTEGER NOT NULL, until INTEGER NOT NULL,
    PRIMARY KEY (scope, value, key, since)
) WITHOUT ROWID;
CREATE INDEX index_history_until ON index_history (until);
CREATE TABLE reserved_ids (
    "partition" INTEGER NOT NULL, key BLOB NOT NULL,
    PRIMARY KEY ("partition", key)
) WITHOUT ROWID;
"""


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty database; check the version of any other.

    Raises:
        StorageError: the file is from another version, or of another program.
    """
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if tables == 0:
        connection.executescript(f"BEGIN;{_TABLES}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;")
    elif version > SCHEMA_VERSION:
        raise StorageError(
            f"the data is from a newer version of the emulator (format {version}, this one "
            f"reads up to {SCHEMA_VERSION})"
        )
    elif version != SCHEMA_VERSION:
        raise StorageError(f"the data file is not an emulator database (format {version})")
