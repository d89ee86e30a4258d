# shellcheck shell=bash
# Sourced by the other scripts from the root of the repository: finds or creates the Python environment.
#
#   prepare EXTRA…        sets PYTHON, and installs PyTorch and this package with these extras where they are missing
#   prepare_sparse        compiles the optional torch_scatter and torch_sparse, unless they can be imported
# A stamp file inside the environment lists the extras, after a line with the checkout, its requirements and Python.

TORCH="torch==2.13.*" # the version that the project is tested with; an installed version is kept

# On cores shared with other programs, OpenMP threads that spin while they wait slow every small operation down to
# milliseconds. Let them sleep.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

say() { printf '==> %s\n' "$*"; }
stop() { printf 'error: %s\n' "$*" >&2 && exit 1; }
new_enough() { "$1" -c "import sys; sys.exit(sys.version_info < (3, 10))" 2>/dev/null; }

choose_python() {
    local active="${VIRTUAL_ENV:-${CONDA_PREFIX:-}}" python
    if [ -n "${TOPOMASK_PYTHON:-}" ]; then
        PYTHON=$(command -v "$TOPOMASK_PYTHON") || stop "TOPOMASK_PYTHON is '$TOPOMASK_PYTHON', which is no program"
    elif [ -n "$active" ]; then
        PYTHON="$active/bin/python"
    else
        PYTHON="$PWD/.venv/bin/python"
        for python in "$PYTHON" python3 python python3.14 python3.13 python3.12 python3.11 python3.10; do
            ! new_enough "$python" || break
        done
        new_enough "$python" || stop "no Python 3.10 or newer found; install one, or set TOPOMASK_PYTHON to its path"
        "$PYTHON" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear .venv || stop "could not create .venv"
    fi
    new_enough "$PYTHON" || stop "$PYTHON does not run, or is older than Python 3.10"
    PREFIX=$("$PYTHON" -c "import sys; print(sys.prefix)")
    say "Python: $PYTHON (set TOPOMASK_PYTHON, or activate an environment, to use another)"
}

check_disk() {
    local free
    free=$(df -Pk "$PREFIX" | awk 'NR == 2 {print int($4 / 1000000)}')
    [ "$free" -ge "$1" ] || stop "only $free GB are free in $PREFIX, and the packages need $1 GB; make room"
}

run_pip() {
    "$PYTHON" -m pip --disable-pip-version-check install "$@" || stop "pip could not install $* (see above)"
}

torch_version() { "$PYTHON" -c "import importlib.metadata as m; print(m.version('torch'))" 2>/dev/null; }

prepare() {
    local stamp key
    choose_python
    stamp="$PREFIX/.topomask-installed"
    key="$PWD $(cksum <pyproject.toml) $("$PYTHON" --version)"
    [ "$(head -n 1 "$stamp" 2>/dev/null)" = "$key" ] || : >"$stamp" || stop "$PREFIX is not writable; use another Python"
    if torch_version >/dev/null && ! printf '%s\n' "$@" | grep -vqxFf "$stamp"; then
        say "Packages: installed already"
        return
    fi
    if ! torch_version >/dev/null; then
        say "PyTorch: installing $TORCH; for a CPU build, set TOPOMASK_TORCH_OPTIONS to the options that its site names"
        if [ -n "${TOPOMASK_TORCH_OPTIONS:-}" ]; then check_disk 4; else check_disk 7; fi
        # shellcheck disable=SC2086  # several options
        run_pip "$TORCH" ${TOPOMASK_TORCH_OPTIONS:-}
    fi
    run_pip -e ".[$(IFS=, && echo "$*")]"
    { echo "$key" && tail -n +2 "$stamp" && printf '%s\n' "$@"; } >"$stamp.$$" && mv "$stamp.$$" "$stamp"
}

prepare_sparse() {
    local -x CPPFLAGS="-g0 ${CPPFLAGS:-}" # no debug information, which both packages drop again; CFLAGS would drop -O3
    local imports="import torch_scatter, torch_sparse"
    ! "$PYTHON" -c "$imports" >/dev/null 2>&1 || return 0
    command -v "${CXX:-c++}" >/dev/null || stop "the extra 'sparse' must be compiled, but there is no C++ compiler"
    say "Extra 'sparse': compiling torch_scatter (about 4 minutes) and torch_sparse (about 8) on 2 cores"
    run_pip setuptools wheel
    run_pip --no-build-isolation -e ".[sparse]"
    "$PYTHON" -c "$imports" >/dev/null 2>&1 || # what pip has cached was compiled for another PyTorch
        run_pip --no-build-isolation --no-cache-dir --force-reinstall --no-deps torch_scatter torch_sparse
    "$PYTHON" -c "$imports" || stop "torch_scatter and torch_sparse were installed but cannot be imported"
}
