"""Traversal orders compared by the policies that learn in them."""
