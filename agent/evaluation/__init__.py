"""Evaluation: placers compared over graphs, clusters, orders and seeds."""
