"""Check an app's quota, and count again: `userlock quota check|recount`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from userlock.admin import command as cli
from userlock.admin.app import AppObject, Stop
from userlock.admin.command import Invocation, usable_lock_id
from userlock.constraints import Quota, QuotaState
from userlock.ids import show as show_id
from userlock.ids import show_key
from userlock.ndb.client import DATASTORE_ERRORS
from userlock.ndb.owners import in_namespace, namespaces
from userlock.words import counted, legible, span, text_of

_SHOWN = 300
_MOST_KEYS = 20
_WRONG = "the flags of some owners are wrong"
_NAMESPACE = "only owners in that namespace (default: in all; with OWNER in the default one)"
_HOURS = cli.number("number of hours", 0, 100_000)
_CHOICE = (
    cli.of_namespace(
        "only owners in that namespace (default: in all; with OWNER in the default one)"
    ),
    cli.argument("owners", metavar="OWNER", nargs="*", help="only these lock ids"),
    cli.option("--hours", "H", "owners with a change within H hours (default: 26)", _HOURS, 26.0),
)
_APP = AppObject("quota", "userlock.constraints.Quota", Quota, Quota.context)


@cli.command(*_CHOICE, no=_WRONG)
def check(options: argparse.Namespace, invocation: Invocation, quota: Quota) -> int:
    """Report owners whose flags are wrong.

    Looks at the owners whose job has not run, and at those with a change within --hours; with
    OWNER at these alone. Exits with 1 if the flags of one are wrong, and no job staged in the
    last five minutes will see to it. The JSON document has checked, wrong (owner, limit, counted,
    differing, dirty_seconds), failed (owner, error) and interrupted.
    """
    wrong: list[dict[str, Any]] = []

    def look(owner: str) -> None:
        state = quota.state(owner)
        if not state.is_right:
            wrong.append(_facts(state))
            invocation.progress(_line(state))

    document = _each(options, invocation, quota, look, {"wrong": wrong})
    text = f"{counted(document['checked'], 'owner')} checked, {len(wrong):,} wrong"
    return invocation.answer(document, text, no=bool(wrong or document["failed"]))


@cli.command(*_CHOICE, no="some have failed")
def recount(options: argparse.Namespace, invocation: Invocation, quota: Quota) -> int:
    """Stage the job of owners again.

    Stages it for the owners that `check` reports, or for each OWNER. The jobs run in the app.
    Ctrl-C or SIGTERM ends it after the current owner. The JSON document has checked, stamped,
    failed (owner, error) and interrupted.
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
    places = [""] if owners else namespaces()
    with Stop().listening() as stop:
        for namespace in places if options.namespace is None else [options.namespace]:
            with in_namespace(namespace):
                for owner in owners or quota.owners(options.hours):
                    if stop():
                        break
                    checked += 1
                    try:
                        work(owner)
                    except DATASTORE_ERRORS:
                        raise
                    except Exception as error:
                        text = legible(text_of(error), _SHOWN)
                        failed.append({"owner": show_id(owner), "error": text})
    for each in failed:
        invocation.progress(f"{each['owner']}: cannot be counted: {each['error']}")
    return {"checked": checked, **found, "failed": failed, "interrupted": stop.requested}


def _line(state: QuotaState) -> str:
    limit = "no limit" if state.limit is None else f"limit {state.limit:,}"
    text = f"{show_id(state.owner)}: {state.counted:,} counted, {limit}"
    text += f", {len(state.differing):,} flags are wrong"
    if state.dirty_seconds is not None:
        text += f"; its job has not run for {span(state.dirty_seconds)}"
    return text


def _facts(state: QuotaState) -> dict[str, Any]:
    """Return a state for JSON. In an ndb context, which keys need to be shown."""
    return {
        "owner": show_id(state.owner),
        "limit": state.limit,
        "counted": state.counted,
        "differing": [show_key(key) for key in state.differing[:_MOST_KEYS]],
        "dirty_seconds": state.dirty_seconds,
    }


quota = _APP.group(
    "quota",
    "Check the flags of a quota, and count again.",
    "The quota's outbox needs client=.",
    _WRONG,
    check,
    recount,
)
