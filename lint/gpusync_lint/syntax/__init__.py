"""Helpers for `ast` trees: parsing, traversal, names and blocks."""
