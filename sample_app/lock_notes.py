"""A report to the client about the request's locks.

Every response to a request that took a lock has a `Server-Timing` header, which browsers show in
their network panel. The pages report it in words.
"""

from __future__ import annotations

import flask

from userlock.events import LISTENERS, Acquired, Event


def install(app: flask.Flask) -> None:
    """Add the header to the responses of `app`."""
    app.after_request(_add_header)


def in_words() -> str:
    """Return one short sentence about the request's locks."""
    if not flask.current_app.config["PROTECTION"].locked:
        return "No lock was taken."
    taken = _taken()
    if not taken:
        return ""
    if any(event.degraded for event in taken):
        return "memcached does not answer, so the lock is degraded."
    longest = max(taken, key=_waited)
    waited = f"{_waited(longest) * 1000:.1f} ms"
    return (
        f"Waited {waited} for the lock." if longest.blocked_by else f"The lock was free: {waited}."
    )


def _note(event: Event) -> None:
    # Listeners run in the thread that takes the lock, so this is its request.
    if isinstance(event, Acquired) and flask.has_request_context():
        flask.g.setdefault("locks_taken", []).append(event)


# Once per process, however many apps it builds.
LISTENERS.add(_note)


def _taken() -> list[Acquired]:
    taken: list[Acquired] = flask.g.get("locks_taken", [])
    return taken


def _add_header(response: flask.Response) -> flask.Response:
    if taken := _taken():
        # The longest one: a batch job takes hundreds of locks.
        longest = max(taken, key=_waited)
        how = "degraded" if longest.degraded else "contended" if longest.blocked_by else "free"
        header = f'lock;desc="{how}";dur={_waited(longest) * 1000:.1f}'
        response.headers["Server-Timing"] = header
    return response


def _waited(event: Acquired) -> float:
    return event.waited_seconds
