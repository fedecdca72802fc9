"""Which traversal order to learn in."""
