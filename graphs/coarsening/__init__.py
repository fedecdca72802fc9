"""From ops to a smaller graph of at most so many placement units, and back."""
