#!/bin/sh
# Run the unit and contract tests on other Pythons, each in an environment of its own.
# Usage: tools/test-pythons.sh 3.11 3.12 …        (those that are not on the PATH are named, not run)
set -eu
ran=''
failed=''
missing=''
for version in "$@"; do
    if ! command -v "python$version" >/dev/null 2>&1; then
        missing="$missing $version"
        continue
    fi
    echo "==> Python $version"
    venv=.venv/python$version
    VENV=$venv PYTHON=python$version tools/setup.sh dev
    if "$venv/bin/pytest" -q -n 2 --dist loadfile -m 'not slow and not long' tests/unit tests/contract; then
        ran="$ran $version"
    else
        failed="$failed $version"
    fi
done
echo "passed:${ran:- none} · failed:${failed:- none} · not on the PATH:${missing:- none}"
[ -z "$failed" ] && [ -n "$ran" ]
