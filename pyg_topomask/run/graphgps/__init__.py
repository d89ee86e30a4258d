"""Everything that knows configs in the spelling of GraphGPS: keys, files, data sets, and models by name."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyg_topomask.run.graphgps.reading import read

__all__ = ["read"]


def __getattr__(name: str) -> Any:
    if name != "read":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyg_topomask.run.graphgps.reading import read

    return read
