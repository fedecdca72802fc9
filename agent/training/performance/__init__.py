"""What makes training fast on CPU."""
