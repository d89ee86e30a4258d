"""Attention on ragged batches: under a mask, over all pairs of a graph, along edges."""
