"""``python -m pyg_topomask`` is ``topomask``."""

import sys

from pyg_topomask.run.cli import main

if __name__ == "__main__":
    sys.exit(main())
