"""The pages, one file for each activity.

Every form works without JavaScript: POST, redirect, GET. The handlers read the form, call one
function of `sample_app.learning`, and report the result.
"""

from __future__ import annotations

from sample_app.pages import (
    certificates,  # noqa: F401 (each adds its routes)
    coach,  # noqa: F401
    exercises,  # noqa: F401
    home,  # noqa: F401
    jobs,  # noqa: F401
    nightly,  # noqa: F401
    payments,  # noqa: F401
    projects,  # noqa: F401
    record,  # noqa: F401
    screens,  # noqa: F401
    sign_in,  # noqa: F401
    videos,  # noqa: F401
)
from sample_app.pages.blueprint import views

__all__ = ["views"]
