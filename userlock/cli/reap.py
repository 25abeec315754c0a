"""Remove answers that are no longer kept: `userlock reap`."""

from __future__ import annotations

import argparse
import importlib

from userlock.cli.command import Invocation, add_app

NAME = "reap"
SUMMARY = "remove answers of requests that are no longer kept"
NO_MEANS = ""
DETAILS = """\
The answers of requests with an idempotency key are kept for keep_hours. A request that is not
finished is never removed. To be run each day, for instance; a TTL policy of Datastore on
UserLockRequest.expire_at does the same. Ctrl-C or SIGTERM ends it after the current one. The
JSON document has removed and interrupted.

The app's userlock.idempotency.Flows are named as for `userlock flows`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_app(parser, "flows", "USERLOCK_FLOWS")


def run(options: argparse.Namespace, invocation: Invocation) -> int:
    code: int = importlib.import_module("userlock.cli.flows_work").reap(options, invocation)
    return code
