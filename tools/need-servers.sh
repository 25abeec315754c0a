#!/bin/sh
# The tests run against the real memcached and the real Redis. Installs them
# from the distribution when they are missing and the user may; otherwise says
# what to run.
set -eu
missing=''
command -v memcached >/dev/null 2>&1 || missing="$missing memcached"
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
if [ -z "$missing" ]; then
    exit 0
fi
install="apt-get install -y --no-install-recommends$missing"
if ! command -v apt-get >/dev/null 2>&1; then
    echo "The tests need$missing, and this is not Debian: install with your package manager." >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    as=''
elif sudo -n true 2>/dev/null; then
    as='sudo'
else
    echo "The tests need$missing. Install: sudo $install" >&2
    exit 1
fi
echo "==> Installing$missing from the distribution"
$as apt-get update -q >/dev/null
# RUNLEVEL=1: the packages would start servers of the system's own, which nobody asked for.
$as env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 $install >/dev/null
