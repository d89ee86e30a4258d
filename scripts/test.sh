#!/usr/bin/env bash
# Runs the test suite:  bash scripts/test.sh [--all] [arguments of pytest]
#
# --all, or the variable CI, adds the optional compiled packages and runs the tests that touch them once more with them.
# The first run comes before that, so that it is the plain installation that is tested.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/_environment.sh
. scripts/_environment.sh

NO_TESTS=5  # pytest's exit code when it collected none

case "${CI:-}" in "" | 0 | false | False) all="" ;; *) all=yes ;; esac
arguments=()
for argument in "$@"; do
    if [ "$argument" = --all ]; then all=yes; else arguments+=("$argument"); fi
done

prepare run ogb dev
say "Tests: ${arguments[*]:-the whole suite}"
"$PYTHON" -m pytest ${arguments[@]+"${arguments[@]}"} || {
    code=$?
    [ "$code" -ne "$NO_TESTS" ] || printf 'error: no test was found\n' >&2
    exit "$code"
}

if [ -n "$all" ]; then
    prepare_sparse
    say "Tests that touch torch_sparse, with it"
    "$PYTHON" -m pytest ${arguments[@]+"${arguments[@]}"} -m sparse || {
        code=$?
        [ "$code" -eq "$NO_TESTS" ] || exit "$code"
        say "none of the chosen tests touches torch_sparse"
    }
fi
say "All passed"
