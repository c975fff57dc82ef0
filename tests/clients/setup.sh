#!/usr/bin/env bash
# Installs the npm clients that these tests run into tests/clients/node_modules. Does nothing when they are there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# npm's own record of an install, which it writes last; a newer package.json means that a pin has moved.
stamp=node_modules/.package-lock.json
if [ -f "$stamp" ] && [ ! package.json -nt "$stamp" ]; then
    exit 0
fi

if ! command -v npm >/dev/null; then
    echo "tests/clients/setup.sh: npm is needed to install the clients and was not found: install Node.js 20 or newer" >&2
    exit 1
fi

# Not `ci`: it takes a lock file whose optional packages are not all resolved (opencode's, for other platforms) for a wrong one.
# The pins of package.json and the lock file decide as well.
npm install --no-audit --no-fund --loglevel=error >/dev/null
touch "$stamp"
