"""Everything that knows configs in the spelling of GraphGPS: keys, files, data sets, and models by name."""
