"""Inner loops of masks that multiply fast: Toeplitz, trees, prefix sums, polynomials of a sparse matrix, Kronecker."""
