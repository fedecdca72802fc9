"""Compares placers over graphs, clusters, orders and seeds."""
