# shellcheck shell=bash
# Sourced by the other scripts from the root of the repository: finds or creates the Python environment.
#
#   choose_python         sets PYTHON: $TOPOMASK_PYTHON, else the active virtual environment's, else .venv's
#   prepare EXTRA…        installs PyTorch, then this package with these extras, unless they are installed already
#   prepare_sparse        compiles the optional torch_scatter and torch_sparse, unless they are installed already
#
# A stamp file inside the environment lists what was installed. It is written after the installation has succeeded.

TORCH="torch==2.13.*"  # the version that the project is tested with; an installed version >= 2.6 is kept
OLDEST_TORCH="(2, 6)"
OLDEST_PYTHON="(3, 10)"
NEEDED_KIB=$((4 * 1024 * 1024))

# On cores shared with other programs, OpenMP threads that spin while they wait slow every small operation down to
# milliseconds. Let them sleep after some microseconds.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-5000}"

say() { printf '==> %s\n' "$*"; }

stop() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

new_enough() { "$1" -c "import sys; sys.exit(sys.version_info < $OLDEST_PYTHON)" 2>/dev/null; }

choose_python() {
    local own=""
    if [ -n "${TOPOMASK_PYTHON:-}" ]; then
        PYTHON=$(command -v "$TOPOMASK_PYTHON") || stop "TOPOMASK_PYTHON is '$TOPOMASK_PYTHON', which is no program"
    elif [ -n "${VIRTUAL_ENV:-}" ]; then
        PYTHON="$VIRTUAL_ENV/bin/python"
    else
        PYTHON="$PWD/.venv/bin/python" own=yes
        "$PYTHON" -m pip --version >/dev/null 2>&1 || make_environment
    fi
    new_enough "$PYTHON" || stop "$PYTHON does not run, or is older than Python 3.10"
    PREFIX=$("$PYTHON" -c "import sys; print(sys.prefix)")
    STAMP="$PREFIX/.topomask-installed"
    LOG="$PREFIX/topomask-install.log"
    say "Python: $PYTHON${own:+ (set TOPOMASK_PYTHON, or activate an environment, to use another)}"
}

make_environment() {
    local python found=""
    for python in python3 python python3.14 python3.13 python3.12 python3.11 python3.10; do
        if new_enough "$python"; then
            found=$python
            break
        fi
    done
    [ -n "$found" ] || stop "no Python 3.10 or newer found; install one, or set TOPOMASK_PYTHON to its path"
    "$found" -c "import ensurepip, venv" 2>/dev/null ||
        stop "$found has no 'venv' module; on Debian and Ubuntu: apt install python3-venv"
    check_disk .
    say "Creating .venv with $("$found" --version)"
    "$found" -m venv --clear .venv || stop "$found could not create .venv (see above)"
}

check_disk() {
    local free
    free=$(df -Pk "$1" | awk 'NR == 2 {print $4}')
    [ "$free" -ge "$NEEDED_KIB" ] ||
        stop "only $((free / 1024)) MiB are free in $1, and the packages need 4 GiB; make room, or use another disk"
}

# pip's output goes to the log, and its main lines to the screen.
run_pip() {
    local start=$SECONDS
    if ! "$PYTHON" -m pip --disable-pip-version-check --retries 2 install "$@" 2>&1 | tee -a "$LOG" |
        while IFS= read -r line; do  # awk and grep may buffer lines
            case $line in
            Collecting* | "  Downloading"* | *Building* | Installing*) printf '    %.74s\n' "$line" ;;
            esac
        done; then
        explain_pip_failure
    fi
    say "done in $((SECONDS - start)) s"
}

explain_pip_failure() {
    local tail
    tail=$(tail -n 60 "$LOG")
    case "$tail" in
    *"No space left on device"*)
        stop "the disk is full; make room, then start again (pip's output: $LOG)" ;;
    *"connection broken"* | *"Failed to establish"* | *"Connection refused"* | *"name resolution"* | *"timed out"* | *ProxyError* | *"Network is unreachable"*)
        stop "pip cannot reach the package index; check the network connection and proxy settings (pip's output: $LOG)" ;;
    *externally-managed-environment*)
        stop "$PYTHON belongs to the system, which forbids installing into it; use a virtual environment (unset TOPOMASK_PYTHON to get one)" ;;
    *)
        tail -n 8 "$LOG" >&2
        stop "pip failed (its complete output: $LOG)" ;;
    esac
}

# The first line of the stamp names the checkout, requirements and Python. One line for each extra follows.
stamp_key() { printf '%s %s %s' "$PWD" "$(cksum <pyproject.toml)" "$("$PYTHON" --version)"; }

stamped() {
    local extra
    [ -f "$STAMP" ] && [ "$(head -n 1 "$STAMP")" = "$(stamp_key)" ] || return 1
    for extra in "$@"; do
        grep -qxF "$extra" "$STAMP" || return 1
    done
    "$PYTHON" -c "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('torch', 'torch_geometric'))))"
}

write_stamp() {
    local part="$STAMP.$$"
    {
        stamp_key
        echo
        if stamped; then tail -n +2 "$STAMP"; fi
        printf '%s\n' "$@"
    } >"$part" && mv "$part" "$STAMP"
}

torch_version() {
    "$PYTHON" - <<PY 2>/dev/null
import importlib.metadata, re
version = importlib.metadata.version("torch")
if tuple(map(int, re.findall(r"\d+", version)[:2])) < $OLDEST_TORCH:
    raise SystemExit(1)
print(version)
PY
}

prepare() {
    local version
    choose_python
    if stamped "$@"; then
        say "Packages: installed already"
        return
    fi
    check_disk "$PREFIX"
    : >"$LOG" || stop "$PREFIX is not writable; set TOPOMASK_PYTHON to a Python whose environment is"
    if version=$(torch_version); then
        say "PyTorch: $version is installed already"
    else
        say "PyTorch: installing $TORCH (a CPU build is enough; this may take some minutes)"
        run_pip "$TORCH"
    fi
    say "pyg_topomask[$(IFS=, && echo "$*")]: installing"
    run_pip -e ".[$(IFS=, && echo "$*")]"
    write_stamp "$@"
}

sparse_imports() { "$PYTHON" -c "import torch_scatter, torch_sparse" >/dev/null 2>&1; }

# The stamp names the PyTorch version that the two were compiled for, because they do not load with another one.
#
# Python's own flags have -g, which writes debug information that both packages drop again (they link with -s). -g0 in
# CPPFLAGS switches it off, because CPPFLAGS come after Python's flags; CFLAGS and CXXFLAGS would replace them, -O3
# included.
prepare_sparse() {
    local name
    local -x CPPFLAGS="-g0 ${CPPFLAGS:-}"
    name="sparse for torch $(torch_version)"
    if stamped "$name"; then
        say "Extra 'sparse': installed already"
        return
    fi
    if ! sparse_imports; then
        command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null ||
            stop "the extra 'sparse' must be compiled, but there is no C++ compiler; on Debian and Ubuntu: apt install g++"
        check_disk "$PREFIX"
        say "Extra 'sparse': compiling torch_scatter (about 4 minutes) and torch_sparse (about 8) on 2 cores;" \
            "seconds if pip has cached them"
        run_pip setuptools wheel
        run_pip --no-build-isolation -e ".[sparse]"
    fi
    if ! sparse_imports; then
        say "Extra 'sparse': pip's cached packages were compiled for another PyTorch; compiling again"
        run_pip --no-build-isolation --no-cache-dir --force-reinstall --no-deps torch_scatter torch_sparse
        sparse_imports || stop "torch_scatter and torch_sparse were installed but cannot be imported (see $LOG)"
    fi
    write_stamp "$name"
}
