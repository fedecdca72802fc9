"""Places that a training runs in."""
