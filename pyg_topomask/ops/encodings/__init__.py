"""Computation of positional and structural encodings: eigenvectors, diagonals of matrix powers, node pairs."""
