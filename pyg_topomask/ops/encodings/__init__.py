"""What positional and structural encodings compute: eigenvectors, diagonals of matrix powers, pairs of nodes."""
