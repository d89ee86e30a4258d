"""From a config to batches: data sets, features, splits, samplers."""
