"""Seconds of an op on a device."""
