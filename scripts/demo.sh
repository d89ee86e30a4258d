#!/usr/bin/env bash
# Trains three small graph transformers on a generated data set and compares them, in about 2 minutes on 2 cores:
#   bash scripts/demo.sh [arguments of scripts/demo.py]
set -euo pipefail
CDPATH="" cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/_environment.sh
. scripts/_environment.sh

prepare run
say "Demo: 3 models with 3 runs each, on graphs that are generated once"
exec "$PYTHON" scripts/demo.py "$@"
