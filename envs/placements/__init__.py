"""A device for every op: placements and their files."""
