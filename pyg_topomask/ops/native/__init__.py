"""C++ sources of the fast kernels."""
