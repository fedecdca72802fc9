"""Steps that run as placed."""
