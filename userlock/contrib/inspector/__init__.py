"""Show operators of an app its locks, on pages.

UserLock(app, inspector=Inspector(operator_of))  # operator_of(request): a name, or None

pages.py     the Flask blueprint: who may see it, headers, navigation
locks.py     locks, contention, violations, breaking a lock
jobs.py      the pages of the outbox; requests.py: of requests that happen once
origin.py    forms of other sites; shared.py: what the pages share
"""

from userlock.contrib.inspector.pages import Inspector

__all__ = ["Inspector"]
