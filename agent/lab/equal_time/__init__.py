"""Placers in equal time on a sealed test set."""
