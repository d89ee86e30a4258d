#!/usr/bin/env bash
# Builds the sdist, the wheel and a wheel with a compiled library, and checks each in an environment of its own:
#   bash scripts/release.sh           # 1 minute; the compiled library is one of ten, by the compiler of this machine
#   bash scripts/release.sh FOLDER    # on Linux: a wheel with all libraries for each platform; keeps all in FOLDER
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

# Prints the keys of a dictionary of sources.py.
known() { "$PYTHON" -c "from pyg_topomask.ops.native import sources; print(*sources.$1)"; }

# check FILE [LIBRARY…]: installs a file without its dependencies, and runs the checks outside of the repository.
check() {
    environment="$work/env-${1##*/}"
    say "Checking ${1##*/}"
    quietly "$PYTHON" -m venv --without-pip "$environment"
    quietly "$PYTHON" -m pip --python "$environment/bin/python" install --disable-pip-version-check --no-deps "$1"
    "$PYTHON" -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
        >"$("$environment/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")/dependencies.pth"
    cp scripts/_installed.py "$work"
    (cd "$work" && env -u PYTHONPATH -u CXX TOPOMASK_CACHE="$work/cache" "$environment/bin/python" _installed.py "${@:2}")
}

# The tests of ops/, which compare compiled code with plain torch, with what was checked last and without a compiler;
# those of the search for a compiler need programs of the system.
test_without_compiler() {
    mkdir "$work/tree" "$work/home"
    cp -r tests pyproject.toml "$work/tree"
    (cd "$work/tree" && env -i PATH="$work/home" HOME="$work/home" "$environment/bin/python" -m pytest -x tests/ops \
        --ignore tests/ops/native/test_loader.py)
}

say "Building"
quietly "$PYTHON" -m build --outdir "$built"  # the wheel is built from the sdist
quietly "$PYTHON" -m twine check --strict "$built"/*
check "$(ls "$built"/*.tar.gz)"
check "$(ls "$built"/*-any.whl)"
if [ -n "$kept" ]; then
    quietly "$PYTHON" -m venv "$work/audit"
    quietly "$work/audit/bin/python" -m pip install auditwheel
    for platform in $(known PLATFORMS); do
        say "Building for $platform"
        TOPOMASK_SHIP_NATIVE=1 TOPOMASK_SHIP_FOR=$platform quietly "$PYTHON" -m build --wheel --outdir "$built"
        wheel=$(ls "$built"/*"$platform".whl)
        case $platform in manylinux*)
            quietly "$work/audit/bin/auditwheel" show "$wheel"
            tr -s '\n ' ' ' <"$work/log" | grep -qF "platform tag: \"$platform\"" || quietly false "$wheel: wrong tag"
            ;;
        esac
        case $platform in manylinux*_"$(uname -m)")
            # shellcheck disable=SC2046  # several names
            check "$wheel" $(known LIBRARIES)
            test_without_compiler
            ;;
        esac
    done
    cp "$built"/* "$kept"
elif command -v "${CXX:-c++}" >/dev/null; then
    TOPOMASK_SHIP_NATIVE=forest quietly "$PYTHON" -m build --wheel --outdir "$work/native"
    check "$(ls "$work"/native/*.whl)" forest
fi
say "Release: all passed in $SECONDS s"
