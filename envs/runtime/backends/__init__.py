"""Processes that run the devices of a placed step."""
