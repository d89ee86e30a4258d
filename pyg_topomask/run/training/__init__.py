"""Training: the Lightning module, losses, metrics, optimisers, callbacks."""
