"""``topomask schema``: the JSON schema of configs."""

from __future__ import annotations

import json
from typing import Any

from pyg_topomask.run.config.reference import json_schema


def main(*_: Any) -> int:
    """Run the command."""
    print(json.dumps(json_schema(), indent=2))
    return 0
