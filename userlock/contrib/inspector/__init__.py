"""The inspector: pages for whoever looks after an app, of its locks as they are now.

UserLock(app, inspector=Inspector(operator_of))  # operator_of(request): a name, or None

tally.py     what this process has seen: contention, outages
views.py     each view as facts: locks, contention, violations, outages, heartbeats
pages.py     the Flask blueprint: HTML, its JSON twin, and breaking a lock
"""

from userlock.contrib.inspector.pages import Inspector

__all__ = ["Inspector"]
