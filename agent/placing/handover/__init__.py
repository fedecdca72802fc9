"""Files that are handed over with a placement: tables, a device map, a trace, and the bounds of the step."""
