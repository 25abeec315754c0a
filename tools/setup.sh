#!/bin/sh
# Create .venv and install the checkout, and what GROUP needs as requirements/GROUP.txt has it.
# Usage: tools/setup.sh GROUP        (run: the sample app; dev: tests, tools and documentation as
# well; bench: the locks that the benchmarks compare with; oldest: tests of the model layer, in
# .venv/oldest, with the oldest releases of Google's libraries that pyproject.toml allows)
set -eu
group=$1
venv=${VENV:-.venv}
if [ "$group" = oldest ]; then
    venv=.venv/oldest
fi
python=${PYTHON:-python3}

if ! command -v "$python" >/dev/null 2>&1; then
    echo "There is no $python on the PATH. Install Python 3.11 or later, or name it: PYTHON=/path/to/python3 make $group" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "$("$python" --version) is too old: userlock needs Python 3.11 or later. Name another one: PYTHON=python3.11 make ..." >&2
    exit 1
fi
if [ ! -x "$venv/bin/python" ]; then
    echo "==> 1/2 Creating the virtual environment in $venv"
    if ! "$python" -m venv "$venv"; then
        rm -rf "$venv"
        echo "$python cannot create virtual environments. On Debian: sudo apt-get install python3-venv" >&2
        exit 1
    fi
fi
options='install --disable-pip-version-check --progress-bar off'
echo "==> 2/2 Installing userlock, its emulator and what they need (a minute or two the first time)"
{
    status=0
    "$venv/bin/python" -m pip $options -r "requirements/$group.txt" --no-deps --require-hashes 2>&1 || status=$?
    [ "$status" != 0 ] || "$venv/bin/python" -m pip $options -e . -e ./emulator --no-deps --no-build-isolation 2>&1 || status=$?
    echo "$status" >"$venv/.pip-status"
} | sed -u -E \
    -e '/^ *(Collecting|Building editable|Installing collected|ERROR|error)/!d' \
    -e 's/ \((from|pyproject).*//; s/^ */    /; s/^(.{90}).*/\1 .../'
if [ "$(cat "$venv/.pip-status")" != 0 ]; then
    echo "The installation failed. To see all of it: $venv/bin/pip install -r requirements/$group.txt --no-deps --require-hashes" >&2
    exit 1
fi
touch "$venv/.ready-$group"
