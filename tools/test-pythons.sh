#!/bin/sh
# Run the unit and contract tests on other Pythons, each in an environment of its own.
# Usage: tools/test-pythons.sh 3.11 3.12 …        (those that are not on the PATH or known to pyenv are
# named, not run; TESTS="tests/unit/lock": other tests)
set -eu

is_version() {
    "$1" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$2" 2>/dev/null
}

ran=''
failed=''
missing=''
tests=${TESTS:-tests/unit tests/contract}
for version in "$@"; do
    python=python$version
    # A shim of pyenv exists for versions that are not active too.
    if ! is_version "$python" "$version"; then
        python=$(pyenv prefix "$version" 2>/dev/null)/bin/python || true
    fi
    if ! is_version "$python" "$version"; then
        missing="$missing $version"
        continue
    fi
    echo "==> Python $version"
    venv=.venv/python$version
    VENV=$venv PYTHON=$python tools/setup.sh dev
    if "$venv/bin/pytest" -q -n 2 --dist worksteal -m 'not slow and not long' $tests; then
        ran="$ran $version"
    else
        failed="$failed $version"
    fi
done
echo "passed:${ran:- none} · failed:${failed:- none} · not here:${missing:- none}"
[ -z "$failed" ] && [ -n "$ran" ]
