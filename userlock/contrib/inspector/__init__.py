"""Show operators of an app its locks, on pages.

UserLock(app, inspector=Inspector(operator_of))  # operator_of(request): a name, or None

tally.py     counts of the waits of this process
views.py     the facts of each view: locks, contention, violations
origin.py    forms of other sites
pages.py     the Flask blueprint: HTML, JSON, and breaking a lock
jobs.py      the pages of the outbox; requests.py: of requests that happen once
shared.py    what these two share
"""

from userlock.contrib.inspector.pages import Inspector

__all__ = ["Inspector"]
