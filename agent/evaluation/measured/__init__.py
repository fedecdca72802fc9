"""Placements measured on real devices."""
