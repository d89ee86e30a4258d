"""``topomask schema``: the JSON schema of configs."""

import json
from typing import Any

from pyg_topomask.run.graphgps.config import Config


def main(*_: Any) -> None:
    """Run the command."""
    version = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    print(json.dumps(version | Config.model_json_schema(), indent=2))
