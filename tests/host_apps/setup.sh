#!/usr/bin/env bash
# Makes an environment of its own for each file of requirements/, in .venvs: these packages clash with each other and with
# ours. Does nothing where that is done. The files name every package, so that nothing has to be resolved.
#
#     tests/host_apps/setup.sh           all of them
#     tests/host_apps/setup.sh sanic     some of them
#
# A file may say "# needs Python 3.12": then that or a newer one is looked for on the PATH, among those of pyenv and uv, and
# at last asked of apt-get. Debian 12 has none, and no package of PyPI ships one: there the rest is installed, and the tests of
# that package skip and say why, also in CI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

python=${PYTHON:-../../.venv/bin/python}
export PIP_DISABLE_PIP_VERSION_CHECK=1

is_at_least() {
    "$2" -c "import sys, venv; sys.exit(sys.version_info < tuple(map(int, '$1'.split('.'))))" 2>/dev/null
}

find_python() {
    local least=$1 each
    for each in "$python" python3 python3.{12,13,14} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python \
        "${UV_PYTHON_INSTALL_DIR:-$HOME/.local/share/uv/python}"/cpython-3.*/bin/python3; do
        if is_at_least "$least" "$each"; then
            echo "$each"
            return
        fi
    done
    return 1
}

apt_python() {
    local least=$1 each
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || return 1
    apt-get update -qq >&2 || return 1
    for each in python3.{12,13,14}; do
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$each" >/dev/null 2>&1 && break
    done
    find_python "$least"
}

make_one() {
    local name=$1 requirements="requirements/$1.txt" folder=".venvs/$1" least base=$python
    mkdir -p .venvs
    if [ "$folder/.installed" -nt "$requirements" ]; then
        return
    fi
    least=$(sed -n 's/^# needs Python //p' "$requirements")
    if [ -n "$least" ]; then
        base=$(find_python "$least" || apt_python "$least") ||
            { echo "$name needs Python $least, which this system does not offer" | tee "$folder.without" >&2; return; }
    fi
    rm -rf "$folder" "$folder.without"
    "$base" -m venv --without-pip "$folder" || return
    # What is imported is compiled then; most of it never is.
    "$python" -m pip --python "$folder/bin/python" install --quiet --quiet --no-deps --no-compile --only-binary :all: \
        -r "$requirements" || { echo "tests/host_apps/setup.sh: $name could not be installed" >&2; return 1; }
    touch "$folder/.installed"
}

if [ "$#" -eq 0 ]; then
    for file in requirements/*.txt; do
        set -- "$@" "$(basename "$file" .txt)"
    done
fi
status=0
for name in "$@"; do
    make_one "$name" || status=1
done
exit "$status"
