#!/usr/bin/env bash
# Trains three small graph transformers on a generated data set, in about 3 minutes on 2 cores, and compares them:
#   bash scripts/demo.sh [arguments of scripts/demo.py]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/_environment.sh
. scripts/_environment.sh

prepare run
exec "$PYTHON" scripts/demo.py "$@"
