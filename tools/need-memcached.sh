#!/bin/sh
# The tests run against the real memcached. Installs it from the distribution
# when it is missing and the user may; otherwise says what to run.
set -eu
if command -v memcached >/dev/null 2>&1; then
    exit 0
fi
install='apt-get install -y --no-install-recommends memcached'
if ! command -v apt-get >/dev/null 2>&1; then
    echo "The tests need memcached, and this is not Debian: install it with your package manager." >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    as=''
elif sudo -n true 2>/dev/null; then
    as='sudo'
else
    echo "The tests need memcached. Install it: sudo $install" >&2
    exit 1
fi
echo "==> Installing memcached from the distribution"
# RUNLEVEL=1: the package would start a memcached of the system's own, which nobody asked for.
$as apt-get update -q >/dev/null
$as env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 $install >/dev/null
memcached --version
