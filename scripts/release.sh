#!/usr/bin/env bash
# Builds the sdist, the wheel and a wheel with a compiled library, and checks each in an environment of its own:
#   bash scripts/release.sh [FOLDER]    # keeps sdist and wheels in FOLDER
# The environments are empty but for this package and see the installed dependencies, such as PyTorch.
set -euo pipefail
kept=${1:+$(mkdir -p "$1" && CDPATH="" cd -- "$1" && pwd)}
CDPATH="" cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/_environment.sh
. scripts/_environment.sh

prepare run ogb dev
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
built=$work/dist

quietly() { "$@" >"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; stop "failed: $*"; }; }

# Installs one file without its dependencies, and runs the checks outside of the repository.
check() {
    local environment="$work/env-${1##*/}"
    say "Checking ${1##*/}"
    quietly "$PYTHON" -m venv --without-pip "$environment"
    quietly "$PYTHON" -m pip --python "$environment/bin/python" install --disable-pip-version-check --no-deps "$1"
    "$PYTHON" -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
        >"$("$environment/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")/dependencies.pth"
    cp scripts/_installed.py "$work"
    (cd "$work" && env -u PYTHONPATH TOPOMASK_CACHE="$work/cache" "$environment/bin/python" _installed.py "${2:-}")
}

say "Building"
quietly "$PYTHON" -m build --outdir "$built"  # the wheel is built from the sdist
check "$(ls "$built"/*.tar.gz)"
check "$(ls "$built"/*-any.whl)"
if command -v "${CXX:-c++}" >/dev/null; then
    # One compiled library is enough for this check; TOPOMASK_SHIP_NATIVE=1 builds all of them in a minute.
    TOPOMASK_SHIP_NATIVE=${TOPOMASK_SHIP_NATIVE:-forest} quietly "$PYTHON" -m build --wheel --outdir "$work/native"
    check "$(ls "$work"/native/*.whl)" forest
    cp "$work"/native/*.whl "$built"
fi
[ -z "$kept" ] || cp "$built"/* "$kept"
say "Release: all passed in $SECONDS s"
