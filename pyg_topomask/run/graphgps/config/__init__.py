"""The keys of a config, one file per group of sections; :mod:`.schema` joins them, :mod:`.load` reads YAML."""

from pyg_topomask.run.graphgps.config.schema import Config

__all__ = ["Config"]
