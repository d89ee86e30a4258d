#!/usr/bin/env bash
# Runs the test suite:  bash scripts/test.sh [--run-slow] [--all] [arguments of pytest]
#
# --run-slow adds the tests that start processes, train whole models or call torch.compile.
# --all, or the variable CI, installs the optional compiled packages and runs the tests that use them once more.
# The first run comes before, so that it tests the plain installation.
# Two processes share the tests, with one thread each; `-n 0` runs all tests in one process, as a debugger needs.
set -euo pipefail
CDPATH="" cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/_environment.sh
. scripts/_environment.sh

NO_TESTS=5  # pytest's exit code when it collected none

case "${CI:-}" in "" | 0 | false | False) all="" ;; *) all=yes ;; esac
arguments=()
for argument in "$@"; do
    case "$argument" in tests/*) [ -e "${argument%%::*}" ] || stop "there is no $argument" ;; esac
    if [ "$argument" = --all ]; then all=yes; else arguments+=("$argument"); fi
done

run_pytest() { "$PYTHON" -m pytest -n 2 --dist worksteal ${arguments[@]+"${arguments[@]}"} "$@"; }

prepare run ogb dev
say "Tests: ${arguments[*]:-the whole suite}"
run_pytest || {
    code=$?
    [ "$code" -ne "$NO_TESTS" ] || printf 'error: no test was found\n' >&2
    exit "$code"
}

if [ -n "$all" ]; then
    prepare_sparse
    say "Tests that use torch_sparse"
    run_pytest -m sparse || {
        code=$?
        [ "$code" -eq "$NO_TESTS" ] || exit "$code"
        say "none of the chosen tests uses torch_sparse"
    }
fi
say "All passed"
