#!/bin/sh
# The tests need the real memcached, the real Redis, the Node.js client for the emulator, Chromium
# for the pages and spin for the models. This script installs missing programs from the distribution
# if the user may, and otherwise prints the command; and the client from npm.
set -eu

install_node_client() {
    client=tests/contract/emulator/node
    if [ -f "$client/node_modules/.package-lock.json" ] &&
        [ ! "$client/package-lock.json" -nt "$client/node_modules/.package-lock.json" ]; then
        return
    fi
    echo "==> Installing @google-cloud/datastore from npm"
    (cd "$client" && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error >/dev/null)
}

missing=''
command -v memcached >/dev/null 2>&1 || missing="$missing memcached"
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
command -v node >/dev/null 2>&1 || missing="$missing nodejs"
command -v npm >/dev/null 2>&1 || missing="$missing npm"
command -v spin >/dev/null 2>&1 || missing="$missing spin"
command -v gcc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
if [ -z "$missing" ]; then
    install_node_client
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
# RUNLEVEL=1: otherwise the packages would start system servers.
$as env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 $install >/dev/null
install_node_client
