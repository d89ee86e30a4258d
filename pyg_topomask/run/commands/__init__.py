"""The subcommands of topomask beside run and check."""
