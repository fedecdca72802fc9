"""Graph files: reading, writing and checking the JSON formats."""
