"""Placers of pipelines: cuts of a graph into stages, and a device for each stage."""
