#!/usr/bin/env bash
# Trains four small models on handwritten digits, grids of pixels, and compares them, in 1 to 2 minutes on 2 cores:
#   bash scripts/demo.sh [arguments of scripts/demo.py]
set -euo pipefail
CDPATH="" cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/_environment.sh
. scripts/_environment.sh

prepare run digits
say "Demo: 4 models with 2 runs each, on images that come with scikit-learn"
exec "$PYTHON" scripts/demo.py "$@"
