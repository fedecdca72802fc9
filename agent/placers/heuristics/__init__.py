"""Placers that plan once: single devices, fills, list schedules, partitions."""
