"""The pages, one file for each thing that people do here.

Every form works without JavaScript: POST, redirect, GET. The handlers read what
was sent, call one function of `sample_app.learning`, and say what came of it.
"""

from __future__ import annotations

from sample_app.pages import (
    certificates,  # noqa: F401 (each adds its routes)
    coach,  # noqa: F401
    exercises,  # noqa: F401
    home,  # noqa: F401
    nightly,  # noqa: F401
    projects,  # noqa: F401
    record,  # noqa: F401
    sign_in,  # noqa: F401
    videos,  # noqa: F401
)
from sample_app.pages.blueprint import views

__all__ = ["views"]
