"""Compare constraints with their rows: `userlock unique check|repair`, `quota check|recount`."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import userlock.ids as ids
from userlock.admin import command as cli
from userlock.admin.app import AppObject, stoppable
from userlock.admin.command import Invocation, usable_lock_id
from userlock.constraints import Quota
from userlock.constraints.audit import Audit, Problem, constrained_models
from userlock.lock.configuration import default_service
from userlock.ndb.client import ClientOfProcess, find_client
from userlock.ndb.owners import current_namespace, in_namespace, namespaces
from userlock.ndb.transactions import failure_text, is_outage
from userlock.words import counted, legible, owner_in, span

_SHOWN = 300
_MOST_KEYS = 20
_CLIENT = AppObject(
    "client",
    "ndb.Client, or a function that makes it,",
    ClientOfProcess,
    lambda client: client.context("the client is"),
    find_client,
    lambda client: client.identity,
)
_WAIT = "wait at most S s for the lock of an entity (default: 5)"
_KINDS = "only these kinds (default: all with constraints)"
_KINDS_CHOSEN = (
    cli.argument("kinds", metavar="KIND", nargs="*", help=_KINDS),
    cli.of_namespace('only that namespace, "" for the default one (default: all)'),
)


@cli.command(*_KINDS_CHOSEN, no="there is a problem")
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


@cli.command(
    *_KINDS_CHOSEN,
    cli.option("--wait", "S", _WAIT, cli.seconds, 5.0),
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
    default_service()  # before the first entity
    return _audit(options, invocation, repair=True, wait_timeout=options.wait)


def _audit(options: argparse.Namespace, invocation: Invocation, **of_audit: Any) -> int:
    problems: list[dict[str, Any]] = []  # only for JSON: there may be as many as entities
    left = repaired = 0
    with stoppable() as stop:
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
        **problem._asdict(),
        "key": ids.show_key(problem.key),
        "constraint": legible(problem.constraint, _SHOWN),
        "value": legible(problem.value, _SHOWN) if ids.are_plain() else "",
        "holder": "" if problem.holder is None else ids.show_key(problem.holder),
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


unique = _CLIENT.group(
    "unique",
    "Compare entities with the claims of their unique values, and repair those.",
    "The module has to\nimport the models. A repair takes locks from --store if the app has no "
    "service.",
    "some entities or claims are not as they should be",
    *(check, repair),
)


_WRONG = "the flags of some owners are wrong"
_NAMESPACE = "only owners in that namespace (default: in all; with OWNER in the client's)"
_HOURS = cli.number("number of hours", 0, 100_000)
_OWNERS_CHOSEN = (
    cli.of_namespace(_NAMESPACE),
    cli.argument("owners", metavar="OWNER", nargs="*", help="only these lock ids"),
    cli.option("--hours", "H", "owners with a change within H hours (default: 26)", _HOURS, 26.0),
)
_QUOTA = AppObject("quota", "userlock.constraints.Quota", Quota, Quota.context)


@cli.command(*_OWNERS_CHOSEN, no=_WRONG, name="check")
def check_quota(options: argparse.Namespace, invocation: Invocation, quota: Quota) -> int:
    """Report owners whose flags are wrong.

    Looks at the owners whose job has not run, and at those with a change within --hours; with
    OWNER at these alone. Exits with 1 if the flags of one are wrong, and no job staged in the
    last five minutes will see to it. The JSON document has checked, wrong (namespace, owner,
    limit, counted, differing, dirty_seconds), failed (namespace, owner, error) and interrupted.
    """
    wrong: list[dict[str, Any]] = []

    def look(owner: str) -> None:
        state = quota.state(owner)
        if state.is_right:
            return
        differing = [ids.show_key(key) for key in state.differing[:_MOST_KEYS]]
        facts = _of_owner(owner)
        wrong.append({**state._asdict(), **facts, "differing": differing})
        limit = "no limit" if state.limit is None else f"limit {state.limit:,}"
        text = f"{owner_in(**facts)}: {state.counted:,} counted, {limit}"
        text += f", {len(state.differing):,} flags are wrong"
        if state.dirty_seconds is not None:
            text += f"; its job has not run for {span(state.dirty_seconds)}"
        invocation.progress(text)

    document = _each(options, invocation, quota, look, {"wrong": wrong})
    text = f"{counted(document['checked'], 'owner')} checked, {len(wrong):,} wrong"
    return invocation.answer(document, text, no=bool(wrong or document["failed"]))


@cli.command(*_OWNERS_CHOSEN, no="some have failed")
def recount(options: argparse.Namespace, invocation: Invocation, quota: Quota) -> int:
    """Stage the job of owners again.

    Stages it for the owners that `check` reports, or for each OWNER. The jobs run in the app.
    Ctrl-C or SIGTERM ends it after the current owner. The JSON document has checked, stamped,
    failed (namespace, owner, error) and interrupted.
    """
    counts = {"stamped": 0}

    def stamp(owner: str) -> None:
        if options.owners or not quota.state(owner).is_right:
            quota.stamp_now(owner)
            counts["stamped"] += 1

    document = _each(options, invocation, quota, stamp, counts)
    text = f"{counted(document['checked'], 'owner')} checked, "
    text += f"{counted(document['stamped'], 'job')} staged"
    return invocation.answer(document, text, no=bool(document["failed"]))


def _of_owner(owner: str) -> dict[str, str]:
    return {"namespace": current_namespace(), "owner": ids.show(owner)}


def _each(
    options: argparse.Namespace,
    invocation: Invocation,
    quota: Quota,
    work: Callable[[str], None],
    found: Mapping[str, Any],
) -> dict[str, Any]:
    """Do the work for each owner; return the document. One owner's error stops no others."""
    checked = 0
    failed: list[dict[str, str]] = []
    owners = [usable_lock_id(each) for each in options.owners]
    places = [current_namespace()] if owners else namespaces()
    with stoppable() as stop:
        for namespace in places if options.namespace is None else [options.namespace]:
            with in_namespace(namespace):
                for owner in owners or quota.owners(options.hours):
                    if stop():
                        break
                    checked += 1
                    try:
                        work(owner)
                    except Exception as error:
                        if is_outage(error):
                            raise
                        facts, text = _of_owner(owner), legible(failure_text(error), _SHOWN)
                        failed.append({**facts, "error": text})
                        invocation.progress(f"{owner_in(**facts)}: cannot be counted: {text}")
    return {"checked": checked, **found, "failed": failed, "interrupted": stop()}


quota = _QUOTA.group(
    "quota",
    "Check the flags of a quota, and count again.",
    "The quota's outbox needs client=.",
    _WRONG,
    *(check_quota, recount),
)
