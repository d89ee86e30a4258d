"""What a run writes: files, reports, progress, loggers."""
