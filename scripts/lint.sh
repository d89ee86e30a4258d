#!/usr/bin/env bash
# Checks the style (ruff) and the types (mypy) of the whole project, like .ci/run and the pre-commit hook:
#   bash scripts/lint.sh
set -euo pipefail
CDPATH="" cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/_environment.sh
. scripts/_environment.sh

prepare run ogb dev
say "Style"
"$PYTHON" -m ruff check .
say "Types"
"$PYTHON" -m mypy
