"""Random walks, and the pair tables of products of walk tables."""
