"""Attention along listed edges, and along blocks of consecutive nodes."""
