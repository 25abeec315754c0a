#!/bin/sh
# Write the exact versions and hashes of what is installed here, for all platforms and Pythons: of
# each group of pyproject.toml into requirements/, and of the emulator's image.
# Versions stay as they are unless pyproject.toml needs others. To upgrade: tools/lock.sh --upgrade
set -eu
cd "$(dirname "$0")/.."

# Usage: lock FILE ARGUMENT …
lock() {
    file=$1
    shift
    .venv/bin/uv pip compile "$@" --quiet --output-file "$file" --universal --python-version 3.11 \
        --generate-hashes --no-annotate --custom-compile-command 'make lock' \
        --no-emit-package userlock --no-emit-package userlock-emulator >/dev/null
    echo "$file"
}

# Usage: lock_group GROUP ARGUMENT …
lock_group() {
    group=$1
    shift
    printf -- '-e .\n-e ./emulator\n' | lock "requirements/$group.txt" - --group "$group" "$@"
}

lock_group dev "$@"
lock_group run --constraints requirements/dev.txt
lock_group bench --constraints requirements/dev.txt
# Of benchmarks of other packages, in environments without userlock.
for peers in idempotency appengine; do
    lock "requirements/$peers.txt" --group "$peers" "$@"
done
lock emulator/requirements.txt emulator/pyproject.toml --group build --constraints requirements/dev.txt
# The oldest releases of Google's libraries that pyproject.toml allows.
oldest=$(mktemp)
trap 'rm "$oldest"' EXIT
sed -n 's/^    "\(google-cloud-[a-z]*\)>=\([0-9.]*\)[,"].*/\1==\2/p' pyproject.toml >"$oldest"
lock_group oldest --constraints "$oldest" "$@"
