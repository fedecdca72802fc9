"""From ops to a smaller graph of groups of ops, and back."""
