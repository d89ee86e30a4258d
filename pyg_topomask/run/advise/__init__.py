"""Measurements behind ``topomask advise``: the graphs, trials of attentions, and what they predict."""
