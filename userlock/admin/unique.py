"""Compare entities with the claims of their unique values: `userlock unique check|repair`."""

from __future__ import annotations

import argparse
import itertools
from typing import Any

from userlock.admin.app import AppObject, Stop
from userlock.admin.command import Invocation, argument, command, of_namespace, option, seconds
from userlock.constraints.audit import Audit, Problem, constrained_models
from userlock.ids import are_plain, show_key
from userlock.ndb.client import ClientOfProcess, find_client
from userlock.ndb.owners import in_namespace, namespaces
from userlock.words import counted, legible

_SHOWN = 300
_APP = AppObject(
    "client",
    "ndb.Client, or a function that makes it,",
    ClientOfProcess,
    lambda client: client.context("the client is"),
    find_client,
    lambda client: client.identity,
)
_KINDS = "only these kinds (default: all with constraints)"
_CHOICE = (
    argument("kinds", metavar="KIND", nargs="*", help=_KINDS),
    of_namespace('only that namespace, "" for the default one (default: all)'),
)


@command(*_CHOICE, no="there is a problem")
def check(options: argparse.Namespace, invocation: Invocation, client: ClientOfProcess) -> int:
    """Report what is wrong.

    Changes nothing. Exits with 1 if there is a problem: unclaimed (an entity has no claim of
    its value: older data, other programs), duplicate (another entity has the value), outdated
    (an entity lists a value that it no longer has), void (a claim without an entity that has
    the value), failed (see the error).

    The JSON document has entities, rows, problems (what, key, constraint, value, holder, error,
    repaired), complete and interrupted.
    """
    return _audit(options, invocation)


@command(
    *_CHOICE,
    option("--wait", "S", "wait at most S s for the lock of an entity (default: 5)", seconds, 5.0),
    no="problems are left",
)
def repair(options: argparse.Namespace, invocation: Invocation, client: ClientOfProcess) -> int:
    """Repair what can be repaired.

    Claims free values, and removes void claims. An entity is put again, with its hooks, under its
    lock. Of entities with one value the first that is met gets the claim; the others are
    reported: no entity is given another value. Ctrl-C or SIGTERM ends it after the current batch;
    the same command goes on. Exits with 1 if problems are left. The problems and the JSON
    document are those of check.
    """
    return _audit(options, invocation, repair=True, wait_timeout=options.wait)


def _audit(options: argparse.Namespace, invocation: Invocation, **of_audit: Any) -> int:
    problems: list[dict[str, Any]] = []  # only for JSON: there may be as many as entities
    left = repaired = 0
    with Stop().listening() as stop:
        work = Audit(**of_audit, stopped=stop)
        models = constrained_models(options.kinds)
        for namespace in namespaces() if options.namespace is None else [options.namespace]:
            with in_namespace(namespace):
                for problem in itertools.chain.from_iterable(map(work.run, models)):
                    repaired += problem.repaired
                    left += not problem.repaired
                    facts = _facts(problem)
                    if invocation.json:
                        problems.append(facts)
                    invocation.progress(_line(facts))
    document = {
        "entities": work.entities,
        "rows": work.rows,
        "problems": problems,
        "complete": work.all_remembered and not work.interrupted,
        "interrupted": work.interrupted,
    }
    return invocation.answer(document, _summary(work, repaired, left), no=left > 0)


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


def _line(facts: dict[str, Any]) -> str:
    subject: str = facts["key"]
    if facts["value"]:
        subject += f": {facts['constraint']}: {facts['value']}"
    if facts["holder"]:
        subject += f", which {facts['holder']} has"
    if facts["error"]:
        subject += f": {facts['error']}"
    return f"{'repaired' if facts['repaired'] else facts['what']}: {subject}"


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


unique = _APP.group(
    "unique",
    "Compare entities with the claims of their unique values, and repair those.",
    "The module has to\nimport the models. A repair takes locks from --store if the app has no "
    "service.",
    "some entities or claims are not as they should be",
    *(check, repair),
)
