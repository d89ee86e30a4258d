"""Exact search for the keys with the largest inner products, and attention to them."""
