"""Show operators of an app its locks, on pages.

UserLock(app, inspector=Inspector(operator_of))  # operator_of(request): a name, or None
"""

from userlock.contrib.inspector.pages import Inspector

__all__ = ["Inspector"]
