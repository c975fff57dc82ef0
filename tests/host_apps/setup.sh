#!/usr/bin/env bash
# Makes an environment of its own for each file of requirements/, in .venvs: these packages clash with each other and with
# ours. Does nothing where that is done. The files name every package, so that nothing has to be resolved.
#
#     tests/host_apps/setup.sh           all of them
#     tests/host_apps/setup.sh sanic     some of them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

python=${PYTHON:-../../.venv/bin/python}
export PIP_DISABLE_PIP_VERSION_CHECK=1

make_one() {
    local name=$1 requirements="requirements/$1.txt" folder=".venvs/$1"
    if [ "$folder/.installed" -nt "$requirements" ]; then
        return
    fi
    rm -rf "$folder"
    "$python" -m venv --without-pip "$folder"
    "$python" -m pip --python "$folder/bin/python" install --quiet --quiet --no-deps --only-binary :all: -r "$requirements" ||
        { echo "tests/host_apps/setup.sh: $name could not be installed" >&2; return 1; }
    touch "$folder/.installed"
}

if [ "$#" -eq 0 ]; then
    for file in requirements/*.txt; do
        set -- "$@" "$(basename "$file" .txt)"
    done
fi
for name in "$@"; do
    make_one "$name"
done
