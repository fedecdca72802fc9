"""Devices and links: clusters, their files and presets."""
