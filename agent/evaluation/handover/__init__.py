"""What is handed over with a placement: tables, a device map, a trace, and what bounds the step."""
