"""Findings about the state of a Redis."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

import redis

from userlock.lock.store import Finding, Verdict
from userlock.stores.trial import milliseconds
from userlock.words import counted

_Fact = str | float | bool | None
_POLL_SECONDS = 0.002
_MOST_LIFE = 1.0
_ASKED_LIFE_MS = 100


def examine(connection: Any, server: str, connected: float, prefix: str) -> list[Finding]:
    """Return the findings about the server's figures.

    Args:
        connection: a redis-py connection of our own.
        server: its name, for people.
        connected: how long connecting took, in seconds.
        prefix: for a key that nobody uses.
    """
    connection.send_command("INFO")
    began = _info(connection.read_response(disable_decoding=True))
    life = _life(connection, f"{prefix}-{secrets.token_hex(8)}")
    connection.send_command("INFO")
    later = _info(connection.read_response(disable_decoding=True))
    return judge(server, began, later, connected, life)


def _info(reply: Any) -> dict[str, str]:
    lines = bytes(reply).decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _life(connection: Any, key: str) -> float | None:
    """Measure the time to live of a key that is set for 0.1 s; None if it is not reported."""
    stored_at = time.monotonic()
    try:
        connection.send_command("SET", key, "x", "PX", _ASKED_LIFE_MS)
        connection.read_response()
        while time.monotonic() - stored_at < _MOST_LIFE:
            connection.send_command("GET", key)
            if connection.read_response() is None:
                return time.monotonic() - stored_at
            time.sleep(_POLL_SECONDS)
    except redis.ResponseError:  # a replica; no rights; no memory: other findings say so
        pass
    return None


def judge(
    server: str,
    info: Mapping[str, str],
    later: Mapping[str, str],
    connected: float,
    life: float | None,
) -> list[Finding]:
    """Return the findings that follow from the facts.

    Args:
        server: its name, for people.
        info, later: what INFO says, and says again a moment later.
        connected: how long connecting took, in seconds.
        life: how long a key lived that was asked to live for 0.1 s.
    """
    found = [
        _of(
            "reachable",
            Verdict.OK,
            f"it answers; connecting took {milliseconds(connected)}",
            up=True,
        ),
        _version(info),
        _role(info),
        _eviction(info),
        _evicted(info, later),
        _persistence(info),
        _replication(info),
        _connections(info),
    ]
    if life is not None:
        found.append(
            _of(
                "clock",
                Verdict.OK if life < 0.5 else Verdict.WARNING,
                f"a key asked to live for {_ASKED_LIFE_MS} ms lived for {milliseconds(life)}",
                "" if life < 0.5 else "A crashed holder's lock is freed late.",
                life_seconds=round(life, 3),
            )
        )
    return [finding._replace(server=server) for finding in found if finding is not None]


def _of(subject: str, verdict: Verdict, says: str, advice: str = "", **facts: _Fact) -> Finding:
    return Finding("", subject, verdict, says, advice, facts)


def _number(info: Mapping[str, str], name: str) -> int:
    try:
        return int(info.get(name, "0"))
    except ValueError:
        return 0


def _version(info: Mapping[str, str]) -> Finding:
    version = info.get("redis_version", "")
    return _of("version", Verdict.OK, version or "it does not say", version=version)


def _role(info: Mapping[str, str]) -> Finding:
    mode, role = info.get("redis_mode", "standalone"), info.get("role", "master")
    facts: dict[str, _Fact] = {"mode": mode, "role": role}
    if mode == "sentinel":
        return _of(
            "role",
            Verdict.WRONG,
            "this is a Sentinel, which keeps no data",
            "Name the Redis that it watches, or hand the store a client made with Sentinel.",
            **facts,
        )
    if role == "slave":
        return _of(
            "role",
            Verdict.WRONG,
            "this is a replica: it takes no locks, and shows them late",
            "Name the primary in the URL.",
            **facts,
        )
    if mode == "cluster":
        return _of(
            "role",
            Verdict.WRONG,
            "this is one node of a cluster: locks of the other nodes are refused here (MOVED)",
            "Use a Redis that is no cluster; locks need little memory.",
            **facts,
        )
    return _of("role", Verdict.OK, "primary, on its own or with replicas", "", **facts)


def _eviction(info: Mapping[str, str]) -> Finding:
    policy, limit = info.get("maxmemory_policy", ""), _number(info, "maxmemory")
    used = _number(info, "used_memory")
    facts: dict[str, _Fact] = {"maxmemory_policy": policy, "maxmemory": limit, "used_memory": used}
    if not policy:
        return _of(
            "maxmemory", Verdict.WARNING, "it does not say whether it evicts keys", "", **facts
        )
    share = f"{used / 1e6:,.1f} MB in use" + (f" of {limit / 1e6:,.0f} MB" if limit else "")
    if policy == "noeviction":
        full = bool(limit) and used > 0.85 * limit
        return _of(
            "maxmemory",
            Verdict.WARNING if full else Verdict.OK,
            f"noeviction: live locks stay; {share}",
            "When it is full, locks are refused. Give it more memory." if full else "",
            **facts,
        )
    if not limit:
        return _of("maxmemory", Verdict.OK, f"{policy}, but no limit is set: {share}", "", **facts)
    first = ", those that end soonest first: that is locks" if policy == "volatile-ttl" else ""
    return _of(
        "maxmemory",
        Verdict.WARNING,
        f"{policy}: when it is full, it evicts live locks too{first}; {share}",
        "An evicted lock is free for anybody while its holder goes on. Set maxmemory-policy "
        "noeviction, or give locks a Redis of their own.",
        **facts,
    )


def _evicted(info: Mapping[str, str], later: Mapping[str, str]) -> Finding:
    count = _number(info, "evicted_keys")
    now = max(_number(later, "evicted_keys") - count, 0)
    facts: dict[str, _Fact] = {"evicted_keys": count, "evicted_while_looking": now}
    if not count and not now:
        return _of("evictions", Verdict.OK, "none", "", **facts)
    says = f"{counted(count, 'key')} evicted since it was started"
    if now:
        return _of(
            "evictions",
            Verdict.WRONG,
            f"{says}, {now:,} more while this ran",
            "Live locks may be among them. Give it more memory, or locks a Redis of their own.",
            **facts,
        )
    return _of("evictions", Verdict.WARNING, says, "Locks may have been among them.", **facts)


def _persistence(info: Mapping[str, str]) -> Finding:
    if _number(info, "loading"):
        return _of(
            "persistence", Verdict.WRONG, "it is loading its data, and refuses locks", "Wait."
        )
    if _number(info, "aof_enabled"):
        return _of(
            "persistence",
            Verdict.OK,
            "append-only file: a restart loses about the last second (appendfsync everysec)",
            aof=True,
        )
    return _of(
        "persistence",
        Verdict.OK,
        "no append-only file: a restart forgets locks; two may then hold one until the first "
        "notices, and the fencing refuses the loser's write",
        aof=False,
    )


def _replication(info: Mapping[str, str]) -> Finding | None:
    replicas = _number(info, "connected_slaves")
    if not replicas:
        return None
    return _of(
        "replication",
        Verdict.WARNING,
        f"{replicas} replicas, which are written to later: after a fail-over, locks that were "
        "taken at the last moment are gone",
        "That is how Redis is made. The fencing refuses the loser's write.",
        replicas=replicas,
    )


def _connections(info: Mapping[str, str]) -> Finding | None:
    now, most = _number(info, "connected_clients"), _number(info, "maxclients")
    if not now:
        return None
    refused = _number(info, "rejected_connections")
    facts: dict[str, _Fact] = {"connections": now, "most_connections": most, "refused": refused}
    says = f"{now:,}" + (f" of at most {most:,}" if most else "")
    if refused or (most and now > 0.8 * most):
        says += f"; {refused:,} were refused" if refused else ""
        return _of(
            "connections",
            Verdict.WARNING,
            says,
            "A process that gets no connection goes on without locks. Raise maxclients.",
            **facts,
        )
    return _of("connections", Verdict.OK, says, "", **facts)
