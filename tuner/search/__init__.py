"""Choosing which candidates of a problem to try, and telling which of them is the fastest."""
