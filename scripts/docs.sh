#!/usr/bin/env bash
# Builds the documentation site; a warning is an error:
#   bash scripts/docs.sh [arguments of sphinx-build]
# Open docs/_build/site/index.html in a browser. Neither the build nor the pages use the network.
set -euo pipefail
CDPATH="" cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/_environment.sh
. scripts/_environment.sh

prepare run ogb dev docs
say "Documentation"
rm -rf docs/_build docs/api/generated  # pages of names that no longer exist
"$PYTHON" -m sphinx -b html --fail-on-warning --keep-going --quiet "$@" docs docs/_build/site
say "Documentation: docs/_build/site/index.html, done in $SECONDS s"
