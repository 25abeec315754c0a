"""Check an app's quota, and count again."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from userlock.cli.app import Stop, opened_quota
from userlock.cli.command import FINE, INTERRUPTED, NO, Invocation, usable_lock_id
from userlock.constraints import Quota, QuotaState
from userlock.ids import show as show_id
from userlock.ids import show_key
from userlock.ndb.client import DATASTORE_ERRORS
from userlock.words import counted, legible, span, text_of

_SHOWN = 300
_MOST_KEYS = 20


class _Owners:
    """Owners that are looked at one after the other.

    Attributes:
        checked: how many.
        failed: those whose quota cannot be counted, with the error.
    """

    def __init__(self, quota: Quota, options: argparse.Namespace, stopped: Callable[[], bool]):
        self.checked = 0
        self.failed: list[dict[str, str]] = []
        self._owners: Iterable[str] = [usable_lock_id(each) for each in options.owners]
        if not self._owners:
            self._owners = quota.owners(options.hours)
        self._stopped = stopped

    def each(self, work: Callable[[str], None]) -> None:
        """Do the work for each, until it is stopped. One owner's error stops no others."""
        for owner in self._owners:
            if self._stopped():
                return
            self.checked += 1
            try:
                work(owner)
            except DATASTORE_ERRORS:
                raise
            except Exception as error:
                text = legible(text_of(error), _SHOWN)
                self.failed.append({"owner": show_id(owner), "error": text})


def check(options: argparse.Namespace, invocation: Invocation) -> int:
    """Report the owners whose flags are wrong."""
    console = invocation.console
    wrong: list[dict[str, Any]] = []
    with opened_quota(options, invocation) as quota, Stop().listening() as stop:

        def look(owner: str) -> None:
            state = quota.state(owner)
            if not state.is_right:
                wrong.append(_facts(state))
                if not invocation.json:
                    console.say(_line(state))

        owners = _Owners(quota, options, stop)
        owners.each(look)
    if invocation.json:
        console.document(
            {
                "checked": owners.checked,
                "wrong": wrong,
                "failed": owners.failed,
                "interrupted": stop.requested,
            }
        )
    else:
        _say_failed(invocation, owners)
        console.say(f"{counted(owners.checked, 'owner')} checked, {len(wrong):,} wrong")
    return _code(stop, wrong or owners.failed)


def recount(options: argparse.Namespace, invocation: Invocation) -> int:
    """Stage the job of owners again."""
    console = invocation.console
    stamped: list[str] = []
    with opened_quota(options, invocation) as quota, Stop().listening() as stop:

        def stamp(owner: str) -> None:
            if options.owners or not quota.state(owner).is_right:
                quota.stamp_now(owner)
                stamped.append(owner)

        owners = _Owners(quota, options, stop)
        owners.each(stamp)
    if invocation.json:
        console.document(
            {
                "checked": owners.checked,
                "stamped": len(stamped),
                "failed": owners.failed,
                "interrupted": stop.requested,
            }
        )
    else:
        _say_failed(invocation, owners)
        jobs = counted(len(stamped), "job")
        console.say(f"{counted(owners.checked, 'owner')} checked, {jobs} staged")
    return _code(stop, owners.failed)


def _say_failed(invocation: Invocation, owners: _Owners) -> None:
    for each in owners.failed:
        invocation.console.say(f"{each['owner']}: cannot be counted: {each['error']}")


def _code(stop: Stop, bad: object) -> int:
    if stop.requested:
        return INTERRUPTED
    return NO if bad else FINE


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
