"""Python in a process of its own, for what the process of the tests has done already."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType

from tests.documents import ROOT


def run_python(
    *arguments: str, env: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run it at the root of the checkout, with more variables; return output and exit status."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
