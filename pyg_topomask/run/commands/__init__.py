"""The subcommands of topomask, except run and check."""
