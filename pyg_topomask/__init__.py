"""Scalable, topologically masked attention for graph transformers in PyTorch Geometric."""

__version__ = "0.1.0"
