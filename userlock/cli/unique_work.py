"""Compare entities with the claims of their unique values, and repair those."""

from __future__ import annotations

import argparse
import re
from typing import Any

from userlock.cli.app import Progress, Stop, opened_client
from userlock.cli.command import FINE, INTERRUPTED, NO, CommandError, Invocation
from userlock.constraints.audit import Audit, Problem, constrained_models
from userlock.ids import are_plain, show_key
from userlock.ndb.context import current_context
from userlock.words import counted, legible

_SHOWN = 300
_NAMESPACE = re.compile(r"[0-9A-Za-z._-]{0,100}")


def audit(options: argparse.Namespace, invocation: Invocation, *, repair: bool) -> int:
    """Check, or repair."""
    console, progress = invocation.console, Progress(invocation.console)
    if not _NAMESPACE.fullmatch(options.namespace):
        raise CommandError(
            f"{options.namespace!r:.110} is no namespace: up to 100 letters, digits, and . _ -"
        )
    problems: list[dict[str, Any]] = []  # only for JSON: there may be as many as entities
    left = repaired = 0
    with opened_client(options, invocation), Stop().listening() as stop:
        work = Audit(repair=repair, wait_timeout=getattr(options, "wait", 5.0), stopped=stop)
        with current_context().new(namespace=options.namespace or None).use():
            for model in constrained_models(options.kinds):
                for problem in work.run(model):
                    repaired += problem.repaired
                    left += not problem.repaired
                    if invocation.json:
                        problems.append(_facts(problem))
                    else:
                        progress.end()
                        console.say(_line(problem))
                    progress.show(f"{work.entities:,} entities, {work.rows:,} claims")
        progress.end()
    if invocation.json:
        console.document(
            {
                "entities": work.entities,
                "rows": work.rows,
                "problems": problems,
                "complete": work.all_remembered and not work.interrupted,
                "interrupted": work.interrupted,
            }
        )
    else:
        console.say(_summary(work, repaired, left))
    if work.interrupted:
        return INTERRUPTED
    return NO if left else FINE


def _line(problem: Problem) -> str:
    facts = _facts(problem)
    subject = facts["key"]
    if facts["value"]:
        subject += f": {facts['constraint']}: {facts['value']}"
    if facts["holder"]:
        subject += f", which {facts['holder']} has"
    if facts["error"]:
        subject += f": {facts['error']}"
    return f"{'repaired' if problem.repaired else problem.what}: {subject}"


def _facts(problem: Problem) -> dict[str, Any]:
    """Return a problem for JSON. In an ndb context, which keys need to be shown."""
    return {
        "what": problem.what,
        "key": show_key(problem.key),
        "constraint": legible(problem.constraint, _SHOWN),
        "value": legible(problem.value, _SHOWN) if are_plain() else "",
        "holder": "" if problem.holder is None else show_key(problem.holder),
        "error": problem.error,
        "repaired": problem.repaired,
    }


def _summary(work: Audit, repaired: int, left: int) -> str:
    entities = "1 entity" if work.entities == 1 else f"{work.entities:,} entities"
    parts = [entities, counted(work.rows, "claim")]
    if repaired:
        parts.append(f"{repaired:,} repaired")
    parts.append(counted(left, "problem") if left else "no problems")
    text = ", ".join(parts)
    if work.interrupted:
        return f"{text} so far; the same command goes on"
    if not work.all_remembered:
        text += ". There may be more duplicates: so many entities are unclaimed that not all of "
        text += "their values were compared"
    return text
